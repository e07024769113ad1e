"""From cells to a schedule: neighbours that may as well be alike are, and a running decoder does not thrash.

Each cell brings the candidates that are as good as its best. Among these the schedule takes the ones that make most
neighbouring cells agree, so that it has no cliff the measurements do not show; a difference beyond noise stays,
wherever it is. At run time a decoder leaves its cell only when batch or context are clearly beyond the middle to the
next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .plan import Plan, PlanCell

Place = tuple[int, int]  # (batch, context)
Way = tuple[str, str | None]  # a policy's label and its drafter: what is the same in two cells
HYSTERESIS = 1.15  # as a factor beyond the geometric middle of two cells
SWEEPS = 10  # most passes over all cells; they end when none changes


def agreed(near: Mapping[Place, Sequence[Way]]) -> dict[Place, int]:
    """Return which of each cell's equally good ways it takes.

    Cell by cell the way most neighbours take is chosen, until nothing changes; of equally common ones the earlier.

    Args:
        near: by cell, its ways, the one it would take by itself first.
    """
    neighbours = _neighbours(list(near))
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
    if current is None or wanted is current:
        return wanted
    middle_batch = math.sqrt(current.batch * wanted.batch)
    middle_context = (current.context + wanted.context) / 2.0
    is_clear = _beyond(current.batch, wanted.batch, middle_batch, batch, plan.hysteresis) or _beyond(
        current.context, wanted.context, middle_context, context, plan.hysteresis
    )
    return wanted if is_clear else current


def reachable(plan: Plan, batch: int, context: int) -> tuple[PlanCell, ...]:
    """Return the cells in which a decoder can be of at most so many sequences behind at most so many tokens.

    Whatever cell it was in before: one that it would not leave is among them.
    """
    batches = {min(cell.batch, batch) for cell in plan.cells}
    contexts = {min(cell.context, context) for cell in plan.cells}
    return tuple(
        cell for cell in plan.cells if any(next_cell(plan, cell, b, c) is cell for b in batches for c in contexts)
    )


def _beyond(current: int, wanted: int, middle: float, value: int, factor: float) -> bool:
    """Return whether a value lies on the wanted knot's side of the middle by the factor."""
    if current < wanted:
        return value >= middle * factor
    return current > wanted and value <= middle / factor


def _neighbours(places: Sequence[Place]) -> dict[Place, list[Place]]:
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
