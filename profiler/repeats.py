"""How one visit times a call: in the state of the caches in which a decoder runs it.

Without speculation, or copying text, a decoder runs its target again and again: a target's call is timed once untimed
ones have settled it. A drafter's calls come in short runs between two of the target, whose weights push the drafter's
out of the caches: its cost is the mean of the first calls behind something else.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ..errors import MeasurementError
from .clock import Call, Clock
from .records.pooling import LONG_MS
from .records.role import DRAFT_ROLES

DRAFTING = (*DRAFT_ROLES, "loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Calls of one visit; fewer of long ones."""

    untimed_ms: float  # of untimed calls, at least one, before the timed ones; 0 for none
    timed_ms: float  # calls shorter than this are timed several times in a row
    most_untimed: int
    most_timed: int
    is_mean: bool = False  # of the timed calls; their median otherwise

    def __post_init__(self) -> None:
        if min(self.untimed_ms, self.timed_ms) < 0.0 or min(self.most_untimed, self.most_timed) < 1:
            raise MeasurementError(f"need times of at least 0 ms and at least 1 call, got {self}")

    @property
    def settles(self) -> bool:
        """Whether a call is timed behind others of the same model."""
        return self.untimed_ms > 0.0

    def is_cooled(self, call_ms: float) -> bool:
        """Whether a call must not find its own weights in the caches; a long one never does."""
        return not (self.settles or call_ms >= LONG_MS)

    def untimed(self, call_ms: float) -> int:
        """Return how many calls go before; 1 where it is not known how long they take."""
        if not self.settles or call_ms >= LONG_MS:
            return 0
        return min(max(round(self.untimed_ms / call_ms), 1), self.most_untimed) if call_ms > 0.0 else 1

    def timed(self, call_ms: float) -> int:
        """Return how many calls are timed; 1 where it is not known how long they take."""
        return min(max(int(self.timed_ms / call_ms), 1), self.most_timed) if call_ms > 0.0 else 1

    def visit_ms(self, call_ms: float) -> float:
        """Return what all calls of a visit take."""
        return call_ms * (self.untimed(call_ms) + self.timed(call_ms))

    def time_ms(self, call: Call, clock: Clock, call_ms: float) -> float:
        """Run a visit's calls and return one's milliseconds; `call_ms` is the known cost, or NaN."""
        known_ms = call_ms if call_ms > 0.0 else 0.0
        for _ in range(self.untimed(known_ms)):
            call()
        times = [clock.time_ms(call) for _ in range(self.timed(known_ms))]
        return statistics.mean(times) if self.is_mean else statistics.median(times)


SETTLED = Repeats(untimed_ms=6.0, timed_ms=4.0, most_untimed=9, most_timed=9)
SHORT_RUN = Repeats(untimed_ms=0.0, timed_ms=4.0, most_untimed=1, most_timed=4, is_mean=True)


def repeats_of(role: str) -> Repeats:
    """Return how calls in a role are timed."""
    return SHORT_RUN if role.partition(":")[0] in DRAFTING else SETTLED
