"""Times the parts of a round."""

from __future__ import annotations

import time


class Stopwatch:
    """Notes moments of one round by the host's clock: whoever marks one waits first for what it is to hold."""

    def __init__(self, moments: int) -> None:
        """Allocate so many moments."""
        self._ns = [0] * moments

    def mark(self, moment: int) -> None:
        """Note the time."""
        self._ns[moment] = time.perf_counter_ns()

    def ms(self, first: int, second: int) -> float:
        """Return the milliseconds between two moments."""
        return (self._ns[second] - self._ns[first]) / 1e6
