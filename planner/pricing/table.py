"""What forwards cost in one cell, as tables by tokens and context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..growth.draft import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTable:
    """Milliseconds of one forward at one batch size.

    Attributes:
        contexts: (knots,), ascending.
        ms: (knots, tokens + 1), by tokens per sequence; entry 0 is 0.0, nothing fed.
        is_block: one such forward drafts a whole tree, whatever its layers; its tokens are those that it reads.
        reads_newest: what was committed the target has read for it, all but the newest token.
    """

    contexts: Floats
    ms: Floats
    is_block: bool = False
    reads_newest: bool = False

    @property
    def most_tokens(self) -> int:
        """Most tokens per sequence the table knows."""
        return int(self.ms.shape[1]) - 1

    def at(self, contexts: Floats, tokens: Ints) -> Floats:
        """Return (rounds, forwards): cost of `tokens` at (rounds,) contexts, linear between knots."""
        upper = np.clip(np.searchsorted(self.contexts, contexts), 1, max(len(self.contexts) - 1, 1))
        lower = np.minimum(upper - 1, len(self.contexts) - 1)
        upper = np.minimum(upper, len(self.contexts) - 1)
        gap = np.maximum(self.contexts[upper] - self.contexts[lower], 1.0)
        share = np.clip((contexts - self.contexts[lower]) / gap, 0.0, 1.0)[:, None]
        low: Floats = self.ms[lower[:, None], tokens]
        return low + share * (self.ms[upper[:, None], tokens] - low)

    def paid(self, widths: Ints) -> Ints:
        """Return (rounds, forwards): those of a drafter's layers (rounds, layers) that cost a forward of their own."""
        return widths[:, :1] if self.is_block else widths

    def caught_up(self, committed: Ints) -> Ints:
        """Return (rounds,): tokens that the first forward reads where so many were committed since the last draft."""
        return np.minimum(committed, 1) if self.reads_newest else committed

    def layers(self, context: float, width: int) -> tuple[float, ...]:
        """Return the costs of drafting layers of 0 .. width nodes, as CAST weighs them.

        Any layer of a block drafter is taken for its one forward, since CAST knows no forward that costs nothing.
        """
        row = self.row(context)
        return (0.0, *([float(row[1])] * width)) if self.is_block else tuple(row[: width + 1].tolist())

    def row(self, context: float) -> Floats:
        """Return (tokens + 1,): the costs at one context."""
        every: Floats = self.at(np.array([context]), np.arange(self.ms.shape[1])[None])[0]
        return every


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verification:
    """What verifying costs in one way, by tokens in the tree, and what is fed for so many."""

    table: CostTable
    run_tokens: tuple[int, ...]


NOTHING_DRAFTED = CostTable(contexts=np.empty(0), ms=np.empty((0, 0)))
