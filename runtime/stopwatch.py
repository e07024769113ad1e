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


class CudaStopwatch:
    """For CUDA: events in the stream, which nobody waits for."""

    def __init__(self, moments: int) -> None:
        """Allocate so many events."""
        event: Any = torch.cuda.Event  # Any: torch leaves it untyped
        self._events = [event(enable_timing=True) for _ in range(moments)]

    def mark(self, moment: int) -> None:
        """Put an event into the stream."""
        self._events[moment].record()

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two events, both of which have passed."""
        return float(self._events[first].elapsed_time(self._events[second]))


def stopwatch_of(device: torch.device, moments: int) -> Stopwatch:
    """Return the stopwatch of a device."""
    return CudaStopwatch(moments) if device.type == "cuda" else HostStopwatch(moments)
