"""The cells of a plan: batch sizes at contexts, and the contexts whose rounds tell what each of them costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import MeasurementError, PlanError
from ...profiler.records.surface import LatencySurface

SPAN = 2.0  # as a factor, either way: contexts whose rounds are priced as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the schedule and the contexts whose rounds tell its costs, low < context <= high."""

    batch: int
    context: int
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.batch < 1 or self.context < 1 or not self.low < self.context <= self.high:
            raise PlanError(f"a cell needs batch >= 1 and low < context <= high, got {self}; see cells_of")


def cells_of(batches: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every batch at every context, priced by rounds from half to twice its context.

    So a cell's price does not depend on the other cells. PlanError: no batch, no context, or one below 1.
    """
    lengths = sorted(set(contexts))
    if not batches or not lengths:
        raise PlanError(f"a plan needs batches and contexts, got {list(batches)} and {list(contexts)}; give both")
    return tuple(
        Cell(batch=batch, context=context, low=context / SPAN, high=context * SPAN)
        for context in lengths
        for batch in sorted(set(batches))
    )


def cells_that_run(verify: LatencySurface, batches: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every batch at the contexts where it did not fail, in the order of `cells_of`.

    MeasurementError: no cell is left. PlanError: no batch, no context, or one below 1.
    """
    wanted = [(cell.batch, cell.context) for cell in cells_of(batches, contexts)]
    able = [place for place in wanted if verify.barred(*place) is None]
    if not able:
        raise MeasurementError(f"{verify.barred(*wanted[0])}; plan shorter contexts or smaller batches")
    return cells_at(able)


def cells_at(places: Iterable[tuple[int, int]]) -> tuple[Cell, ...]:
    """Return cells at (batch, context) places, in the order of `cells_of`; PlanError for one below 1."""
    found = (cell for batch, context in dict.fromkeys(places) for cell in cells_of([batch], [context]))
    return tuple(sorted(found, key=lambda cell: (cell.context, cell.batch)))
