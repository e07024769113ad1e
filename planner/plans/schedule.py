"""A schedule at work: a running decoder does not thrash between its cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from .plan import Plan, PlanCell

Place = tuple[int, int]  # (batch, context)
HYSTERESIS = 1.15  # as a factor beyond the geometric middle of two cells


def next_cell(plan: Plan, current: PlanCell | None, batch: int, context: int) -> PlanCell:
    """Return the cell to decode in, given the one the last round ran in."""
    wanted = plan.cell(batch, context)
    return wanted if current is None or not _stays(plan, current, wanted, batch, context) else current


def promised_contexts(plan: Plan, cell: PlanCell) -> tuple[float, float]:
    """Return the contexts, ends included, in which a decoder stays in a cell; alone half to twice its own."""
    knots = sorted(other.context for other in plan.cells if other.batch == cell.batch)
    place = knots.index(cell.context)
    low, high = cell.context / 2.0, cell.context * 2.0
    if place > 0:
        low = (knots[place - 1] + cell.context) / 2.0 / plan.hysteresis
    if place + 1 < len(knots):
        high = (cell.context + knots[place + 1]) / 2.0 * plan.hysteresis
    return low, high


def reachable(plan: Plan, batch: int, context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be with at most so many sequences and tokens, from any cell."""
    knots = sorted({cell.batch for cell in plan.cells})
    switches = [math.isqrt(low * high) for low, high in pairwise(knots)]
    return _in_sight(plan, _ends(switches, 1, batch), context)


def reachable_at(plan: Plan, batch: int, context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be of so many sequences behind at most so many tokens."""
    return _in_sight(plan, [batch], context)


def _in_sight(plan: Plan, batches: Sequence[int], context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be at some batches behind at most so many tokens.

    The nearer batch and context are to a cell, the longer it holds against the wanted one. So the ends of each stretch
    in which one cell is wanted show all cells that can hold within it.
    """
    contexts: dict[int, list[int]] = {}
    for cell in plan.cells:
        contexts.setdefault(cell.batch, []).append(cell.context)
    switches = [(low + high) // 2 for knots in contexts.values() for low, high in pairwise(sorted(knots))]
    places = [(b, c) for b in batches for c in _ends(switches, 0, context)]
    wanted = [plan.cell(b, c) for b, c in places]
    return tuple(
        cell
        for cell in plan.cells
        if any(one is cell or _stays(plan, cell, one, b, c) for one, (b, c) in zip(wanted, places, strict=True))
    )


def _ends(switches: Iterable[int], first: int, last: int) -> list[int]:
    """Return the ends of the stretches into which switches cut the numbers from `first` to `last`."""
    inside = {end for switch in switches for end in (switch, switch + 1) if first < end < last}
    return sorted({first, last} | inside)


def _stays(plan: Plan, current: PlanCell, wanted: PlanCell, batch: int, context: int) -> bool:
    middle_batch = math.sqrt(current.batch * wanted.batch)
    middle_context = (current.context + wanted.context) / 2.0
    return not (
        _beyond(current.batch, wanted.batch, middle_batch, batch, plan.hysteresis)
        or _beyond(current.context, wanted.context, middle_context, context, plan.hysteresis)
    )


def _beyond(current: int, wanted: int, middle: float, value: int, factor: float) -> bool:
    """Return whether a value lies on the wanted knot's side of the middle by the factor, or as far as that knot."""
    if current < wanted:
        return value >= min(middle * factor, wanted)
    return current > wanted and value <= max(middle / factor, wanted)
