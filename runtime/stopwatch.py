"""Times the parts of a round without waiting for the device in between."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Marks moments of one round; read once the round's last result has reached the host."""

    def mark(self, moment: int) -> None:
        """Note that everything before this moment has been asked for."""
        ...

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two moments."""
        ...


class HostStopwatch:
    """For devices whose calls return when the work is done."""

    def __init__(self, moments: int) -> None:
        """Allocate so many moments."""
        self._ns = [0] * moments

    def mark(self, moment: int) -> None:
        """Note the time."""
        self._ns[moment] = time.perf_counter_ns()

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two moments."""
        return (self._ns[second] - self._ns[first]) / 1e6


class CudaStopwatch(HostStopwatch):
    """For CUDA: the host's clock, but between two moments behind which work still runs; there events in the stream.

    A round ends when its last result has reached the host, and so does a draft that is grown on the device: the clock
    is right there, and an event costs the host more than most of what it does in a round.
    """

    def __init__(self, moments: int, queued: tuple[int, ...]) -> None:
        """Allocate so many moments; those in `queued` are of work that still runs."""
        super().__init__(moments)
        event: Any = torch.cuda.Event  # Any: torch leaves it untyped
        self._events = {moment: event(enable_timing=True) for moment in queued}

    def mark(self, moment: int) -> None:
        """Note the time, and for queued work put an event into the stream."""
        super().mark(moment)
        if moment in self._events:
            self._events[moment].record()

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two moments, both of which have passed."""
        if first in self._events and second in self._events:
            return float(self._events[first].elapsed_time(self._events[second]))
        return super().ms(first, second)


def stopwatch_of(device: torch.device, moments: int, queued: tuple[int, ...]) -> Stopwatch:
    """Return the stopwatch of a device; `queued` moments are marked while work before them may still run."""
    return CudaStopwatch(moments, queued) if device.type == "cuda" else HostStopwatch(moments)
