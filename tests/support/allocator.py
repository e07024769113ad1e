"""What torch's allocator hands out while something runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"  # what torch's profiler calls an allocation, or a release by its negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """Bytes beyond what was handed out before; releases of older memory count on a GPU only."""

    peak_bytes: int  # most at once
    left_bytes: int  # not given back by the end


def count_bytes(run: Callable[[], object], device: str = "cpu") -> Allocated:
    """Return what a call allocates on a device.

    A GPU's allocator counts by itself. A CPU's tells torch's profiler, which makes the call several times slower.

    Args:
        run: what it returns is let go, after the count.
        device: a torch device.
    """
    gc.collect()  # what nobody holds any more must not be let go while it counts
    return _on_gpu(run, device) if torch.device(device).type == "cuda" else _on_cpu(run)


def _on_gpu(run: Callable[[], object], device: str) -> Allocated:
    torch.empty(0, device=device)  # what CUDA takes at first is not counted
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    kept = run()
    peak, left = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    del kept
    return Allocated(peak_bytes=peak - before, left_bytes=left - before)


def _on_cpu(run: Callable[[], object]) -> Allocated:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = run()
    del kept
    held = [0, *accumulate(_changes(profiled))]
    return Allocated(peak_bytes=max(held), left_bytes=held[-1])


def _changes(profiled: profile) -> Iterator[int]:
    """Yield bytes handed out, and given back as negatives, in the order of time."""
    results: Any = profiled.profiler  # Any: torch leaves what Kineto returns untyped
    events = [event for event in results.kineto_results.events() if event.name() == MEMORY]
    return (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
