"""From cells to a schedule: neighbours that may as well be alike are, and a running decoder does not thrash.

Each cell brings the candidates that are as good as its best. Among these the schedule takes the ones that make most
neighbouring cells agree, so that it has no cliff the measurements do not show; a difference beyond noise stays,
wherever it is. At run time a decoder leaves its cell only when batch or context are clearly beyond the middle to the
next one: by a factor, but never farther than the next one itself.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise

from .plan import Plan, PlanCell

Place = tuple[int, int]  # (batch, context)
Way = tuple[Hashable, str | None]  # a policy and its drafter, or what else is the same in two cells
HYSTERESIS = 1.15  # as a factor beyond the geometric middle of two cells
SWEEPS = 10  # most passes over all cells; they end when none changes


def agreed(near: Mapping[Place, Sequence[Way]]) -> dict[Place, int]:
    """Return which of each cell's equally good ways it takes.

    Cell by cell the way most neighbours take is chosen, until nothing changes; of equally common ones the earlier.

    Args:
        near: by cell, its ways, the one it would take by itself first.
    """
    neighbours = neighbours_of(list(near))
    taken = dict.fromkeys(near, 0)
    for _ in range(SWEEPS):
        before = dict(taken)
        for place, ways in near.items():
            around = [near[other][taken[other]] for other in neighbours[place]]
            taken[place] = max(range(len(ways)), key=lambda index: (around.count(ways[index]), -index))
        if taken == before:
            break
    return taken


def next_cell(plan: Plan, current: PlanCell | None, batch: int, context: int) -> PlanCell:
    """Return the cell to decode in, given the one the last round ran in.

    The nearest cell, but the current one is left only where batch or context are beyond the middle between the two by
    the plan's hysteresis, a factor. A decoder whose batch goes to and fro around a middle then stays where it is.
    """
    wanted = plan.cell(batch, context)
    return wanted if current is None or not _stays(plan, current, wanted, batch, context) else current


def promised_contexts(plan: Plan, cell: PlanCell) -> tuple[float, float]:
    """Return the contexts that a cell's promise is about, the ends included.

    As far as a decoder stays in it beside its neighbours; where it has none, from half to twice its own.
    """
    knots = sorted(other.context for other in plan.cells if other.batch == cell.batch)
    place = knots.index(cell.context)
    low, high = cell.context / 2.0, cell.context * 2.0
    if place > 0:
        low = (knots[place - 1] + cell.context) / 2.0 / plan.hysteresis
    if place + 1 < len(knots):
        high = (cell.context + knots[place + 1]) / 2.0 * plan.hysteresis
    return low, high


def reachable(plan: Plan, batch: int, context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be of at most so many sequences behind at most so many tokens.

    Whatever cell it was in before: one that it would not leave is among them.
    """
    knots = sorted({cell.batch for cell in plan.cells})
    switches = [math.isqrt(low * high) for low, high in pairwise(knots)]
    return _in_sight(plan, _ends(switches, 1, batch), context)


def reachable_at(plan: Plan, batch: int, context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be of so many sequences behind at most so many tokens."""
    return _in_sight(plan, [batch], context)


def _in_sight(plan: Plan, batches: Sequence[int], context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be at some batches behind at most so many tokens.

    Where one cell is wanted, another is kept the longer the nearer batch and context are to it. So the ends of every
    stretch in which the same cell is wanted tell all that can be kept within it.
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
    """Whether a decoder stays in a cell where another one is wanted."""
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


def neighbours_of(places: Sequence[Place]) -> dict[Place, list[Place]]:
    """Return the cells next to each one: the same context and the next batch, or the other way round."""
    batches, contexts = sorted({batch for batch, _ in places}), sorted({context for _, context in places})
    known = set(places)
    around = {}
    for batch, context in places:
        b, c = batches.index(batch), contexts.index(context)
        steps = [(b - 1, c), (b + 1, c), (b, c - 1), (b, c + 1)]
        inside = [(x, y) for x, y in steps if 0 <= x < len(batches) and 0 <= y < len(contexts)]
        around[batch, context] = [(batches[x], contexts[y]) for x, y in inside if (batches[x], contexts[y]) in known]
    return around
