"""The result of a round that ran ahead of the host."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ..growth.draft import batch_of
from ..kernels.trees import SOUND, hear
from ..stopwatch import Moment

LAUNCHED, DRAFTED, DONE = range(3)  # moments of a round on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A round's result."""

    record: Ints  # (batch, any): draft as in `DeviceDraft.numbers`, `best`, `ends`; a later round overwrites it
    nodes: int  # of each tree, its padding included
    widths: tuple[int, ...]  # nodes of each forward of the drafter
    best: Ints  # (batch, n), the target's token behind each node and behind padding
    ends: list[int]  # (batch,), tokens that were in the target's cache behind it
    draft_ms: float  # on the device
    verify_ms: float

    @property
    def draft(self) -> DraftBatch:
        """The drafted trees."""
        return batch_of(self.record[:, : 3 * self.nodes + 1], self.widths)

    def standing(self, most: int, vocabulary: int) -> Ints | None:
        """Return each sequence's count of accepted tokens, then these, (batch, any); None where a tree is malformed."""
        drawn = np.empty((len(self.record), self.nodes + 1), dtype=np.int64)
        return drawn if hear(self.record, self.nodes, most, vocabulary, drawn) == SOUND else None


def told_of(record: Tensor, moments: Many[Moment], *, nodes: int, widths: tuple[int, ...], drafts: bool) -> Told:
    """Return the result of a round that is over; `drafts`: a model drafted, so that `moments` has DRAFTED."""
    numbers: Ints = record.numpy()
    begun = DRAFTED if drafts else LAUNCHED  # what verifies
    return Told(
        record=numbers,
        nodes=nodes,
        widths=widths,
        best=numbers[:, 3 * nodes + 1 : -1],
        ends=numbers[:, -1].tolist(),
        draft_ms=moments[LAUNCHED].ms_until(moments[DRAFTED]) if drafts else 0.0,
        verify_ms=moments[begun].ms_until(moments[DONE]),
    )
