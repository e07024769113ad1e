"""What a drafter answers and what a grown tree is: the records that pass between them.

A *layer* is what one drafter forward sees: `width` nodes per sequence. Its answer holds, for every one of them, the
`children` most likely next tokens.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..kernels.arrays import ROOT_TOKEN as ROOT_TOKEN

Ints = NDArray[np.int64]
Scores = NDArray[np.float32]
Bools = NDArray[np.bool_]
Array: TypeAlias = Any  # numpy's or torch's: both have shapes, slices, operators, sum and cumsum
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """The most likely next tokens of every node of one layer."""

    tokens: Ints  # (batch, width, children)
    log_probs: Scores  # (batch, width, children), conditional on the node, descending, at most 0

    def __post_init__(self) -> None:
        if self.tokens.ndim != 3 or self.tokens.shape != self.log_probs.shape:
            raise PlanError(
                f"children need tokens and log_probs of one shape (batch, width, children), got "
                f"{self.tokens.shape} and {self.log_probs.shape}; reshape the scorer's answer"
            )


class LayerScorer(Protocol):
    """A drafter of one round: it answers the root's children first, then layer by layer."""

    def root(self, children: int) -> Children:
        """Return the best children of the committed text, width 1."""

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the best `children` of each of the next layer's nodes; rows and slots keep their order.

        `parents` (batch, width) are slots in the previous layer; -1 where a row has fewer nodes than the layer is wide:
        such a slot is fed too, and its answer means nothing. `ranks` (batch, width): which child of that slot; 0 where
        there is none.
        """


class Asked(NamedTuple):
    """What a growing tree requests from its drafter: the best `children` of the root, or of the next layer's nodes.

    `parents` and `ranks` (batch, width) as in `LayerScorer.expand`; None for the root, which is asked about first.
    """

    children: int
    parents: Array = None
    ranks: Array = None


Growth: TypeAlias = Generator[Asked, Array, Result]  # is sent tokens and log_probs of what it asks for


def answered(growth: Growth[Result], scorer: LayerScorer | Array, batch: int) -> Result:
    """Return what grows where a drafter of tensors or numpy's arrays answers; PlanError if it serves another batch."""
    below = None
    while True:
        try:
            asked = growth.send(below)
        except StopIteration as end:
            found: Result = end.value
            return found
        is_first = below is None
        below = scorer.root(asked.children) if is_first else scorer.expand(asked.parents, asked.ranks, asked.children)
        if len(below.tokens) != batch:
            served = len(below.tokens)
            raise PlanError(f"the scorer serves {served} sequences, expected {batch}; pass the scorer's batch")


@dataclass(slots=True, kw_only=True)
class DraftBatch:
    """One drafted tree per sequence; not frozen, as that slows setting its fields every round, but never written to.

    Invariant: node 0 is the root, parents come before their children. Rows are padded to the largest tree; padding has
    token -1, parent 0 and depth 1. Of a stack, `widths` are tokens fed, also those read again; of a block drafter,
    nodes of every layer, all but the first of which cost no forward.
    """

    tokens: Ints  # (batch, nodes), drafted token of each node; -1 for the root
    parents: Ints  # (batch, nodes), index of the parent; -1 for the root
    depths: Ints  # (batch, nodes), edges to the root, so position = context + depth
    sizes: Ints  # (batch,), nodes of each row that are no padding, root included
    widths: tuple[int, ...]  # nodes per sequence of every drafter forward that ran, in order
    levels: tuple[int, ...] = ()  # of a stack, which model ran each forward, 0 next to the target; else empty
    is_sound: bool = False  # whether kernels that know no tokens but the texts' own made it: needs no check

    def __post_init__(self) -> None:
        shape = self.tokens.shape
        if self.parents.shape != shape or self.depths.shape != shape or self.sizes.shape != shape[:1]:
            raise PlanError(
                f"a draft needs tokens, parents and depths of one shape (batch, nodes), got {shape}, "
                f"{self.parents.shape}, {self.depths.shape} with sizes {self.sizes.shape}; pad the rows"
            )


def draft_of_one_shape(
    tokens: Ints, parents: Sequence[int], depths: Sequence[int], widths: tuple[int, ...]
) -> DraftBatch:
    """Return the draft in which every sequence has the same tree; `widths` are nodes of every drafter forward.

    `tokens` (batch, nodes), the root's column included, are not copied; `parents`, `depths` (nodes,) are shared by all
    rows.
    """
    shape = _shape_of(len(tokens), parents, depths)
    return DraftBatch(tokens=tokens, parents=shape[0], depths=shape[1], sizes=shape[2], widths=widths)


@lru_cache(maxsize=256)
def _shape_of(batch: int, parents: Sequence[int], depths: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return parents, depths and sizes of a tree for so many sequences; cached, a tree is grown every round."""
    return shared_rows(parents, batch), shared_rows(depths, batch), np.full(batch, len(parents), dtype=np.int64)


def chains_of(tokens: Ints, lengths: Ints, widths: tuple[int, ...]) -> DraftBatch:
    """Return chains of different `lengths` (batch,) as one batch of trees; `widths` are nodes of every drafter forward.

    `tokens` (batch, longest + 1) include the root's column; what lies behind a chain's end must be -1.
    """
    places = np.arange(tokens.shape[1])
    is_real = places <= lengths[:, None]
    return DraftBatch(
        tokens=tokens,
        parents=np.where(is_real, places - 1, 0),
        depths=np.where(is_real, places, 1),
        sizes=lengths + 1,
        widths=widths,
    )


def shared_rows(row: Sequence[int] | Ints, batch: int) -> Ints:
    """Return (batch, len(row)): the same row for every sequence."""
    rows = np.empty((batch, len(row)), dtype=np.int64)
    rows[:] = row
    return rows


def is_sure(log_probs: Array, confidence: float) -> Array:
    """Return whether tokens with such conditional log-probabilities, in float64, are not doubted."""
    return log_probs >= (math.log(confidence) if confidence else -math.inf)
