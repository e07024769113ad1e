"""What a target's forward loses by running in a round, among other work, against running alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...profiler.records.overhead import OUTERMOST, non_negative_fit

REFINEMENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much a target's forward takes longer in a round than alone.

    Attributes:
        base_ms: milliseconds, whatever it takes.
        share: of what it takes.
    """

    base_ms: float
    share: float = 0.0

    def of(self, alone_ms: float) -> float:
        """Return the milliseconds that a forward loses which takes so many alone."""
        return self.base_ms + self.share * alone_ms


NOTHING_LOST = Loss(base_ms=0.0)


def loss_of(verified: Sequence[tuple[float, float]], *, grows: bool) -> Loss:
    """Return what all rounds of some kinds together tell of their loss.

    Forwards scatter by a share of what they take, so short ones tell more. What is left of a round beside a first
    answer is pulled in where it is among the outermost, and the answer given again.

    Args:
        verified: of each round, milliseconds of its target's forward in it and alone.
        grows: whether part of the loss is a share of the forward.
    """
    inside, alone = np.array(verified).T
    columns = np.stack([1.0 / alone, np.ones(len(alone))], axis=1)[:, : 2 if grows else 1]
    shares = inside / alone - 1.0
    found = np.zeros(columns.shape[1])
    found[0] = float(np.median(inside - alone))
    for _ in range(REFINEMENTS):
        left = shares - columns @ found
        pulled_in = columns @ found + np.clip(left, *np.quantile(left, [OUTERMOST, 1.0 - OUTERMOST]))
        found = non_negative_fit(columns, pulled_in) if grows else np.linalg.lstsq(columns, pulled_in, rcond=None)[0]
    return Loss(base_ms=float(found[0]), share=float(found[1]) if grows else 0.0)
