"""What forwards lose by running in a round, among other work, against running alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...profiler.records.overhead import OUTERMOST, non_negative_fit

REFINEMENTS = 3
Form = Literal["middle", "constant", "growing", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much forwards take longer in a round than alone.

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


def loss_of(timed: Sequence[tuple[float, float]], form: Form) -> Loss:
    """Return what all rounds of some kinds together tell of their loss.

    Forwards scatter by a share of what they take, so short ones tell more. What is left of a round beside a first
    answer is pulled in where it is among the outermost, and the answer given again.

    Args:
        timed: of each round, milliseconds of its forwards in it and alone.
        form: of what is lost: "middle" and "constant" are milliseconds, of few rounds and of many; "growing" these and
            a share of the forward, both at least 0; "line" the same of any sign.
    """
    inside, alone = np.array(timed).T
    middle_ms = float(np.median(inside - alone))
    if form == "middle":
        return Loss(base_ms=middle_ms)
    columns = np.stack([1.0 / alone, np.ones(len(alone))], axis=1)[:, : 1 if form == "constant" else 2]
    shares = inside / alone - 1.0
    found = np.zeros(columns.shape[1])
    found[0] = middle_ms
    for _ in range(REFINEMENTS):
        left = shares - columns @ found
        pulled_in = columns @ found + np.clip(left, *np.quantile(left, [OUTERMOST, 1.0 - OUTERMOST]))
        is_bound = form == "growing"
        found = non_negative_fit(columns, pulled_in) if is_bound else np.linalg.lstsq(columns, pulled_in, rcond=None)[0]
    return Loss(base_ms=float(found[0]), share=float(found[1]) if len(found) == 2 else 0.0)
