"""Other readings of a drafter, and whether one of them agrees more with the target's text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...planner.kernels.arrays import Bools

GAIN = 0.05  # of all positions, that a repair wins at least
DEVIATIONS = 3.0  # of the difference, that it is away from none: some twenty readings are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherReading:
    """One other reading."""

    check: str  # the kind of cause: "layers", "shift", "norm", "order", "rope", "vocabulary", "template", "embeddings"
    reading: str  # in words: "states after 2, 4, 7 layers"
    advice: str
    hits: Callable[[], Bools]  # (positions,), as `first_hits`


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The alternative that agrees most, where it does so beyond chance."""

    alternative: OtherReading
    share: float


def gains(own: Bools, other: Bools) -> bool:
    """Return whether another reading hits more positions beyond chance, by McNemar's test."""
    won, lost = int((other & ~own).sum()), int((own & ~other).sum())
    return won - lost >= max(GAIN * len(own), DEVIATIONS * math.sqrt(won + lost))
