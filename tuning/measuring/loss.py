"""What forwards lose by running in a round, among other work, against running alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...profiler.records.overhead import OUTERMOST

Timed = tuple[float, float]  # milliseconds of a round's forwards in it, and alone
Form = Literal["constant", "growing", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much forwards take longer in a round than alone: `base_ms`, and `share` of their time."""

    base_ms: float
    share: float = 0.0

    def of(self, alone_ms: float) -> float:
        """Return the milliseconds that a forward loses which takes so many alone."""
        return self.base_ms + self.share * alone_ms

    def stalling(self, share: float) -> Loss:
        """Return the same loss of forwards that stalls make longer by so much, on average."""
        return Loss(base_ms=self.base_ms * (1.0 + share), share=self.share + share * (1.0 + self.share))


def loss_of(timed: Sequence[Timed], form: Form) -> Loss:
    """Return the median loss of rounds of some kinds, by least absolute deviations: stalls do not move it.

    Short forwards tell more, as they scatter by a share. A "constant" form is milliseconds, "growing" adds a share of
    the forward, both at least 0; "line" is the same of any sign.
    """
    from scipy.optimize import linprog

    inside, alone = np.array(timed).T
    columns = np.stack([1.0 / alone, np.ones(len(alone))], axis=1)[:, : 1 if form == "constant" else 2]
    shares, apart = inside / alone - 1.0, np.eye(len(alone))
    solved = linprog(
        np.concatenate([np.zeros(columns.shape[1]), np.ones(len(alone))]),
        A_ub=np.block([[-columns, -apart], [columns, -apart]]),
        b_ub=np.concatenate([-shares, shares]),
        bounds=[(0.0 if form == "growing" else None, None)] * columns.shape[1] + [(0.0, None)] * len(alone),
    )
    assert solved.x is not None, "deviations may be as large as they are"
    found: list[float] = solved.x.tolist()
    return Loss(base_ms=found[0], share=found[1] if columns.shape[1] == 2 else 0.0)


def stall_share(timed: Sequence[tuple[Timed, Loss]]) -> float:
    """Return the mean share by which rounds exceed the median loss of their kind, the outermost pulled in.

    Rounds of all kinds count together: stalls are the machine's, and few rounds of one kind tell of luck.
    """
    shares = np.array([inside / (alone + lost.of(alone)) - 1.0 for (inside, alone), lost in timed])
    return float(np.clip(shares, *np.quantile(shares, [OUTERMOST, 1.0 - OUTERMOST])).mean())
