"""The scale of small pictures of promises, over plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .kept import KeptCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The speed-ups that all small pictures of a plan span; 1 is among them."""

    low: float
    high: float
    width: float = 176.0
    height: float = 22.0
    margin: float = 7.0

    def place(self, value: float) -> float:
        """Return how far right a speed-up lies; one beyond the scale lies at its end."""
        share = (value - self.low) / (self.high - self.low)
        return self.margin + min(max(share, 0.0), 1.0) * (self.width - 2 * self.margin)


def scale_of(cells: Sequence[KeptCell]) -> Scale:
    """Return the scale of a plan's cells."""
    ends = ((kept.cell.prediction.speedup_low, kept.cell.prediction.speedup_high) for kept in cells)
    seen = (kept.measured_speedup for kept in cells if kept.measured_speedup is not None)
    found = [1.0, *(end for both in ends for end in both), *seen]
    return Scale(low=min(found) - 0.05, high=max(found) + 0.05)
