"""What differs between two plans, cell by cell, and whether it is more than their intervals allow.

    change    = new / old speed
    is_clear  = |ln change| > sqrt(a^2 + b^2)

a and b are the halves of the two 90 % intervals that face each other, in logarithms. Errors count as independent,
though shared measurements share them: so what is called clear is clear, and some other change may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.prediction import Prediction

Kind = Literal["same", "changed", "added", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """One batch and context in two plans; None where a plan lacks it. `ratio` is new predicted speed over old."""

    batch: int
    context: int
    old: PlanCell | None
    new: PlanCell | None
    ratio: float | None
    is_clear: bool

    @property
    def kind(self) -> Kind:
        """What happened to the way of decoding."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        is_same = self.old.policy == self.new.policy and self.old.drafter == self.new.drafter
        return "same" if is_same else "changed"


def changes(old: Plan, new: Plan) -> list[CellChange]:
    """Return every cell of either plan, by context and batch."""
    olds = {(cell.batch, cell.context): cell for cell in old.cells}
    news = {(cell.batch, cell.context): cell for cell in new.cells}
    places = sorted(olds.keys() | news.keys(), key=lambda place: (place[1], place[0]))
    return [_change(place, olds.get(place), news.get(place)) for place in places]


def _change(place: tuple[int, int], old: PlanCell | None, new: PlanCell | None) -> CellChange:
    ratio = None
    is_clear = False
    if old is not None and new is not None and old.prediction.tokens_per_s > 0.0:
        ratio = new.prediction.tokens_per_s / old.prediction.tokens_per_s
        is_clear = _is_clear(old.prediction, new.prediction)
    return CellChange(batch=place[0], context=place[1], old=old, new=new, ratio=ratio, is_clear=is_clear)


def _is_clear(old: Prediction, new: Prediction) -> bool:
    slow, fast = sorted((old, new), key=lambda each: each.tokens_per_s)
    if fast.low <= 0.0 or slow.tokens_per_s <= 0.0:
        return False
    apart = math.log(fast.tokens_per_s / slow.tokens_per_s)
    below, above = math.log(fast.tokens_per_s / fast.low), math.log(slow.high / slow.tokens_per_s)
    return apart > math.hypot(below, above)
