"""How long one call takes: the host's clock, or a GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from .records.device import Device

Call = Callable[[], None]


class Clock(Protocol):
    """Times calls on one device, and tells how much of a budget is gone."""

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

    def __init__(self, index: int) -> None:
        self.index = index

    def time_ms(self, call: Call) -> float:
        """Run a call on an idle GPU and return the milliseconds until its last kernel ended."""
        import torch

        event: Any = torch.cuda.Event  # Any: torch leaves its constructor untyped
        with torch.cuda.device(self.index):
            start, end = event(enable_timing=True), event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))


def clock_of(device: Device) -> Clock:
    """Return the clock that times calls on a device."""
    return clock_for(device.kind, device.index)


def clock_for(kind: str, index: int) -> Clock:
    """Return the clock that times calls on the device of a kind, "cuda" or another, and index."""
    return CudaClock(index) if kind == "cuda" else HostClock()
