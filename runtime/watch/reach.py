"""The rounds that a cell's promise covers, and the conversion of their times to the cell's own context.

Behind c tokens a round takes a + b c ms, with a, b >= 0. At the cell's own context C, its share s = b C / (a + b C)
grows with the context, so that

  round_ms(c) = round_ms(C) * (1 + s (c / C - 1))

b is the slope to the next cell of the same batch, on either side; it continues beyond the outermost cells. Where a plan
has no other context of a batch, b is unknown: only what is near C is judged, as if b were 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.schedule import promised_contexts
from ..round import Round

NEAR = 1.25  # as a factor, either way


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The rounds by which a way of running a cell is judged."""

    batch: int
    temperature: float
    context: int  # the cell's own
    low: float  # contexts
    high: float
    below: float = 0.0  # share of a round at the cell's context that grows with it, for shorter ones
    above: float = 0.0  # for longer ones

    def holds(self, done: Round) -> bool:
        """Whether a round is one of them: no faults, and the right batch, context and temperature."""
        is_alike = len(done.kept) == self.batch and done.temperature == self.temperature
        return is_alike and not done.faults and self.low <= done.context <= self.high

    def at_home_ms(self, done: Round) -> float:
        """Return the time that a round would have taken at the cell's own context."""
        share = self.above if done.context > self.context else self.below
        return done.round_ms / (1.0 + share * (done.context / self.context - 1.0))


def reach_of(plan: Plan, cell: PlanCell, *, is_own: bool) -> Reach:
    """Return the reach of a cell's own way, or of plain decoding in it."""
    beside = sorted((one for one in plan.cells if one.batch == cell.batch), key=lambda one: one.context)
    place = beside.index(cell)
    before, after = beside[:place][-1:], beside[place + 1 :][:1]
    below, above = before or after, after or before
    low, high = promised_contexts(plan, cell) if below else (cell.context / NEAR, cell.context * NEAR)
    return Reach(
        batch=cell.batch,
        temperature=plan.temperature,
        context=cell.context,
        low=low,
        high=high,
        below=_share(cell, below[0], is_own=is_own) if below else 0.0,
        above=_share(cell, above[0], is_own=is_own) if above else 0.0,
    )


def _share(cell: PlanCell, other: PlanCell, *, is_own: bool) -> float:
    """Return the share of a cell's round that grows with the context; by plain rounds if the other way differs."""
    is_alike = is_own and (other.policy, other.drafter) == (cell.policy, cell.drafter)
    near, far = (cell.prediction, other.prediction) if is_alike else (cell.plain, other.plain)
    slope_ms = (far.round_ms - near.round_ms) / (other.context - cell.context)
    whole_ms = (cell.prediction if is_own else cell.plain).round_ms
    return min(max(slope_ms * cell.context / whole_ms, 0.0), 1.0)
