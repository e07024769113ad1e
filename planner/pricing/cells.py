"""The cells of a plan: batch sizes at contexts, and the contexts that each of them answers for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import MeasurementError, PlanError
from ...profiler.records.surface import LatencySurface


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the schedule and the contexts it answers for, low < context <= high."""

    batch: int
    context: int
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.batch < 1 or self.context < 1 or not self.low < self.context <= self.high:
            raise PlanError(f"a cell needs batch >= 1 and low < context <= high, got {self}; see cells_of")


def cells_of(batches: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every batch at every context; each context answers for all that are nearest to it.

    Raises:
        PlanError: no batch, no context, or one below 1.
    """
    lengths = sorted(set(contexts))
    if not batches or not lengths:
        raise PlanError(f"a plan needs batches and contexts, got {list(batches)} and {list(contexts)}; give both")
    middles = [(left + right) / 2 for left, right in pairwise(lengths)]
    spans = zip(lengths, [-math.inf, *middles], [*middles, math.inf], strict=True)
    return tuple(
        Cell(batch=batch, context=context, low=low, high=high)
        for context, low, high in list(spans)
        for batch in sorted(set(batches))
    )


def cells_that_run(verify: LatencySurface, batches: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every batch at the contexts that its failures leave it, in the order of `cells_of`.

    Raises:
        MeasurementError: they leave none.
        PlanError: no batch, no context, or one below 1.
    """
    wanted = [(cell.batch, cell.context) for cell in cells_of(batches, contexts)]
    able = [place for place in wanted if verify.barred(*place) is None]
    if not able:
        raise MeasurementError(f"{verify.barred(*wanted[0])}; plan shorter contexts or smaller batches")
    return cells_at(able)


def cells_at(places: Iterable[tuple[int, int]]) -> tuple[Cell, ...]:
    """Return cells at (batch, context) places, in the order of `cells_of`; a batch's contexts answer for all.

    Raises:
        PlanError: a batch or a context is below 1.
    """
    contexts: dict[int, list[int]] = {}
    for batch, context in places:
        contexts.setdefault(batch, []).append(context)
    found = (cell for batch, own in contexts.items() for cell in cells_of([batch], own))
    return tuple(sorted(found, key=lambda cell: (cell.context, cell.batch)))
