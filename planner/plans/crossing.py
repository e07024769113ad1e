"""From which batch size on speculation no longer pays, read between the cells of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .plan import Plan, PlanCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where plain decoding begins to win at one context, by log(speed-up) linear in log(batch)."""

    context: int
    last: int | None  # largest planned batch that speculates; None where none does
    first_plain: int | None  # the planned batch above it; None where `last` is the largest
    batch: float | None  # None where one of these is
    plain_below: tuple[int, ...] = ()  # planned batches below `last` that do not speculate
    pays_at: tuple[int, ...] = ()  # planned batches that speculate


def crossings(plan: Plan) -> tuple[Crossing, ...]:
    """Return where plain decoding begins to win, one crossing per context of the plan."""
    contexts = sorted({cell.context for cell in plan.cells})
    return tuple(_crossing([cell for cell in plan.cells if cell.context == context]) for context in contexts)


def named(batches: Sequence[int]) -> str:
    """Return batches as people name them: "batch 1", "batches 1 and 2", "batches 1, 2 and 4"."""
    *first, last = map(str, batches)
    return f"batches {', '.join(first)} and {last}" if first else f"batch {last}"


def speculative_speedup(cell: PlanCell) -> float | None:
    """Return the fastest speculative policy's speed over plain decoding, as the plan compares, or None."""
    if cell.drafter is not None:
        return _speedup(cell)
    rivals = [other.tokens_per_s for other in cell.alternatives if other.drafter is not None]
    return max(rivals) / cell.plain.tokens_per_s if rivals else None


def _speedup(cell: PlanCell) -> float:
    """Return the speed of a cell's own policy over plain decoding, compared as its alternatives are."""
    speed = cell.prediction.tokens_per_s
    return (speed if cell.reading is None else cell.reading.compared(speed)) / cell.plain.tokens_per_s


def _crossing(cells: list[PlanCell]) -> Crossing:
    ordered = sorted(cells, key=lambda cell: cell.batch)
    context = ordered[0].context
    speculating = [cell for cell in ordered if cell.drafter is not None]
    if not speculating:
        return Crossing(context=context, last=None, first_plain=ordered[0].batch, batch=None)
    last, pays_at = speculating[-1], tuple(cell.batch for cell in speculating)
    below = tuple(cell.batch for cell in ordered if cell.drafter is None and cell.batch < last.batch)
    above = next((upper for lower, upper in pairwise(ordered) if lower is last), None)
    if above is None:
        return Crossing(
            context=context, last=last.batch, first_plain=None, batch=None, plain_below=below, pays_at=pays_at
        )
    return Crossing(
        context=context,
        last=last.batch,
        first_plain=above.batch,
        batch=_between(last, above),
        plain_below=below,
        pays_at=pays_at,
    )


def _between(last: PlanCell, above: PlanCell) -> float:
    pays, loses = _speedup(last), speculative_speedup(above)
    if loses is None or loses >= 1.0:  # it is as fast up to there, but for the flattery of having been chosen
        return float(above.batch)
    share = max(math.log(pays), 0.0) / (max(math.log(pays), 0.0) - math.log(loses))
    return float(last.batch * (above.batch / last.batch) ** share)
