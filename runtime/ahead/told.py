"""What the host reads of a round that ran ahead of it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from torch import Tensor

from ...planner.growth.draft import DraftBatch
from ...planner.kernels.arrays import Ints
from ..growth.draft import batch_of
from ..stopwatch import Moment

LAUNCHED, DRAFTED, DONE = range(3)  # moments of a round on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a round said."""

    draft: DraftBatch
    best: Ints  # (batch, n), the target's token behind each node and behind padding
    ends: list[int]  # (batch,), tokens that were in the target's cache behind it
    draft_ms: float  # on the device
    verify_ms: float


def told_of(record: Tensor, moments: Many[Moment], *, nodes: int, widths: tuple[int, ...], drafts: bool) -> Told:
    """Return what a round said that is over.

    Args:
        record: (batch, any) int64 on the host: draft, what is best behind each node, where rows end.
        moments: of the round.
        nodes: of each tree, its padding included.
        widths: nodes of each forward of the drafter.
        drafts: whether a model has drafted, up to a moment of its own.
    """
    numbers, drafted = record.numpy(), 3 * nodes + 1
    begun = DRAFTED if drafts else LAUNCHED  # what verifies
    return Told(
        draft=batch_of(numbers[:, :drafted], widths),
        best=numbers[:, drafted:-1],
        ends=numbers[:, -1].tolist(),
        draft_ms=moments[LAUNCHED].ms_until(moments[DRAFTED]) if drafts else 0.0,
        verify_ms=moments[begun].ms_until(moments[DONE]),
    )
