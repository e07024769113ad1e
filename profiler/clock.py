"""How long one call takes: the host's clock, or a GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from .records.device import Device
from .records.role import CAPTURED

Call = Callable[[], None]
BUSY_CYCLES = 1_000_000  # of a GPU, some 0.5 ms: longer than the host takes to launch, on a slow one too


class Clock(Protocol):
    """Times calls on one device, and counts how much of a budget is gone."""

    def now_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...

    def time_ms(self, call: Call) -> float:
        """Run a call to its end and return what it took in milliseconds."""
        ...


class HostClock:
    """Times calls that are done when they return."""

    def now_s(self) -> float:
        """Return seconds since some fixed moment."""
        return time.perf_counter_ns() / 1e9

    def time_ms(self, call: Call) -> float:
        """Run a call and return the milliseconds until it returned."""
        start_ns = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start_ns) / 1e6


class CudaClock(HostClock):
    """Times calls that queue work on one GPU, between two events on its current stream."""

    def __init__(self, index: int, *, is_busy: bool = False) -> None:
        """Time on the GPU of an index; a busy one has other work when a call is launched."""
        self.index, self.is_busy = index, is_busy

    def time_ms(self, call: Call) -> float:
        """Run a call and return the milliseconds until its last kernel ended."""
        import torch

        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        with torch.cuda.device(self.index):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            if self.is_busy:
                cuda._sleep(BUSY_CYCLES)
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))


def clock_of(device: Device) -> Clock:
    """Return the clock that times calls on a device."""
    return clock_for(device.kind, device.index)


def clock_in(clock: Clock, regime: str) -> Clock:
    """Return the clock for calls in a regime, on the device of another clock."""
    return CudaClock(clock.index, is_busy=True) if isinstance(clock, CudaClock) and regime == CAPTURED else clock


def clock_for(kind: str, index: int) -> Clock:
    """Return the clock that times calls on the device of a kind, "cuda" or another, and index."""
    return CudaClock(index) if kind == "cuda" else HostClock()
