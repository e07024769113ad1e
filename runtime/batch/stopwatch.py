"""Times the parts of a round."""

from __future__ import annotations

import time
from typing import Any

import torch

BEGUN, DRAFTED, LAID_OUT, VERIFIED, DONE = range(5)  # moments of a round


class Stopwatch:
    """Moments of one round by the host's clock; to include a device's work, wait for it before `mark`."""

    def __init__(self, moments: int) -> None:
        self._ns = [0] * moments

    def mark(self, moment: int) -> None:
        """Record the time."""
        self._ns[moment] = time.perf_counter_ns()

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two moments."""
        return (self._ns[second] - self._ns[first]) / 1e6


class Moment:
    """The moment at which a device completes its work so far: a GPU's event, else the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ns = device, 0
        new_event: Any = torch.cuda.Event  # Any: torch leaves it untyped
        self._event: Any = new_event(enable_timing=True) if device.type == "cuda" else None

    def mark(self) -> None:
        """Place the moment behind the device's work so far, without waiting."""
        self._ns = time.perf_counter_ns()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait for the moment."""
        if self._event is not None:
            self._event.synchronize()

    def ms_until(self, later: Moment) -> float:
        """Return the milliseconds to another moment of the device; both have passed."""
        if self._event is None:
            return (later._ns - self._ns) / 1e6
        return float(self._event.elapsed_time(later._event))
