"""How often one caller may ask: a bucket that fills at a steady rate and is emptied by requests."""

from __future__ import annotations

from collections import OrderedDict

MOST_CALLERS = 10_000  # remembered; a forgotten one begins with a full bucket


class Buckets:
    """One bucket for every caller."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        """Take how fast buckets fill and how much they hold; a rate of 0 is no limit."""
        self._rate, self._burst = rate_per_s, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when

    def wait_s(self, caller: str, now: float) -> float:
        """Take one request of a caller; return 0, or the seconds until its next one. `now` is of a monotonic clock."""
        if not self._rate:
            return 0.0
        left, then = self._buckets.pop(caller, (self._burst, now))
        left = min(left + self._rate * (now - then), self._burst)
        is_allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if is_allowed else left, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1.0 - left) / self._rate
