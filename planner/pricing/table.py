"""What forwards cost in one cell, as tables by tokens and context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from ...profiler.records.excess import mean_over_median
from ...profiler.records.role import BLOCK, SELF
from ...profiler.records.surface import LatencySurface
from ..records.draft import Ints
from ..records.room import READ_TOGETHER

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTable:
    """Mean milliseconds of one forward at one batch size."""

    contexts: Floats  # (knots,), ascending
    ms: Floats  # (knots, tokens + 1), by tokens per sequence; entry 0 is 0.0, nothing fed
    is_block: bool = False  # one forward drafts a whole tree, whatever its layers; its tokens are those that it reads
    reads_newest: bool = False  # reads the newest committed token alone: the target has read the others

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

    def reading(self, most: int, batch: int) -> Floats:
        """Return (knots, most + 1): milliseconds of reading so many committed tokens before a draft.

        Up to READ_TOGETHER tokens are one forward; more are read sequence by sequence, then the newest of all together.
        Where a forward is larger than measured, several are priced instead, and one sequence as the whole batch. Both
        cost more than what runs, which is rare: after long copies.
        """
        if not len(self.contexts):
            return np.empty((0, most + 1))
        largest, counts = self.most_tokens, np.arange(most + 1)
        together = counts // largest * self.ms[:, [largest]] + self.ms[:, counts % largest]
        alone = batch * together[:, np.maximum(counts - 1, 0)] + self.ms[:, [1]]
        return np.where(counts <= READ_TOGETHER, together, alone)

    def layers(self, context: float, width: int) -> tuple[float, ...]:
        """Return the costs of drafting layers of 0 .. width nodes, as CAST weighs them.

        Each layer of a block drafter counts as its one forward: CAST has no forward that costs nothing.
        """
        row = self.row(context)
        return (0.0, *([float(row[1])] * width)) if self.is_block else tuple(row[: width + 1].tolist())

    def only(self, context: float) -> CostTable:
        """Return the costs at one context alone."""
        return replace(self, contexts=np.array([context]), ms=self.row(context)[None])

    @property
    def least_ms(self) -> float:
        """What no layer of a draft costs less than: nothing of a block drafter, whose first forward drafts all."""
        return 0.0 if self.is_block else float(self.ms[:, 1:].min())

    def least(self) -> CostTable:
        """Return what no forward of so many tokens, or of more, falls below at any context."""
        cheapest = self.ms.min(axis=0)
        least = np.minimum.accumulate(cheapest[::-1])[::-1]
        return replace(self, contexts=self.contexts[:1], ms=least[None])

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


def cost_table(
    surface: LatencySurface,
    batch: int,
    context: int,
    fed: Sequence[int],
    excess: float | None = None,
    knots: Sequence[int] = (),
) -> CostTable:
    """Return the mean cost of feeding fed[n] tokens per sequence, at every measured context that has any of them.

    A surface has medians; means are longer by one factor, `excess`, which comes from all repeats of the surface where
    None. Where a shape did not run, its cost is interpolated between contexts where it did. Beyond the last of these it
    grows with the context as the next smaller shape does; the smallest stays constant. `context` must have every shape;
    `knots` are further contexts, all measured ones where empty.

    MeasurementError: the batch was not measured, or the context lacks a shape.
    """
    shapes = sorted({tokens for tokens in fed if tokens})
    own = [surface.latency(batch, context, tokens).ms for tokens in shapes]
    rows = {known: _row(surface, batch, known, shapes) for known in knots or surface.contexts(batch)} | {context: own}
    priced = sorted(known for known, row in rows.items() if not np.isnan(row).all())
    ms = _filled(np.array(priced, dtype=np.float64), np.array([rows[knot] for knot in priced]))
    free = np.zeros((len(priced), 1))
    places = np.searchsorted([0, *shapes], fed)
    return CostTable(
        contexts=np.array(priced, dtype=np.float64),
        ms=np.hstack([free, ms])[:, places] * (excess or mean_over_median(surface)),
        is_block=surface.role == BLOCK,
        reads_newest=surface.role == SELF,
    )


def _row(surface: LatencySurface, batch: int, context: int, shapes: Sequence[int]) -> list[float]:
    found = []
    for tokens in shapes:
        try:
            found.append(surface.latency(batch, context, tokens).ms)
        except MeasurementError:
            found.append(math.nan)
    return found


def _filled(contexts: Floats, ms: Floats) -> Floats:
    """Return (knots, shapes) without gaps; every shape must be known at some knot, the smaller shapes come first."""
    filled = ms.copy()
    for shape in np.flatnonzero(np.isnan(ms).any(axis=0)):
        known = np.flatnonzero(~np.isnan(ms[:, shape]))
        line = np.interp(contexts, contexts[known], ms[known, shape])
        if shape:
            smaller, nearest = filled[:, shape - 1], np.clip(np.arange(len(ms)), known[0], known[-1])
            line = line * smaller / smaller[nearest]
        filled[:, shape] = np.where(np.isnan(ms[:, shape]), line, ms[:, shape])
    return filled
