"""A plan's cells as a schedule, with its hysteresis."""

from __future__ import annotations

from ..planner.plans.plan import Plan, PlanCell
from ..planner.plans.schedule import next_cell

AHEAD = 64  # tokens of context for which an answer is looked up at once


class PlannedSchedule:
    """Maps a round to a cell of a plan; it leaves a cell only when another is clearly nearer.

    Invariant: at `_batch` sequences and a context from `_first` to `_last`, the answer is `_cell`. While one cell is
    nearest, the contexts at which a decoder stays in its cell have no gaps, so the two ends decide for all between.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cell: PlanCell | None = None
        self._batch = self._first = self._last = 0

    def __call__(self, batch: int, context: int) -> PlanCell:
        """Return the cell of a round of so many sequences behind so many tokens."""
        if self._cell is not None and batch == self._batch and self._first <= context <= self._last:
            return self._cell
        cell = next_cell(self._plan, self._cell, batch, context)
        stays = self._stays(cell, batch, context)
        self._cell, self._batch = cell, batch
        self._first, self._last = context, context + AHEAD if stays else context
        return cell

    def _stays(self, cell: PlanCell, batch: int, context: int) -> bool:
        is_one_nearest = self._plan.cell(batch, context) is self._plan.cell(batch, context + AHEAD)
        return is_one_nearest and next_cell(self._plan, cell, batch, context + AHEAD) is cell
