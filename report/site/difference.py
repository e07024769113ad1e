"""The page of two plans' differences: what changed in every cell, and by how much."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.prediction import Prediction
from .contents import Contents
from .links import Links, difference_page, plan_page
from .page import SitePage, fault_page, page_of
from .words import NONE, count, moment, sampling

MOVED: tuple[Kind, ...] = ("added", "removed")  # kinds of cells that one plan has


def difference_page_of(contents: Contents, links: Links, older: PlanRow, newer: PlanRow) -> SitePage:
    """Return the page of what differs between two plans; one that cannot be read says why."""
    name, title = difference_page(older.id, newer.id), f"From plan {older.id} to plan {newer.id}"
    try:
        old, new = contents.plan(older.id), contents.plan(newer.id)
    except SpectuneError as error:
        over = ((plan_page(older.id), f"Plan {older.id}"), (plan_page(newer.id), f"plan {newer.id}"))
        return fault_page(links, name, title, over=over, what="cannot be read", why=str(error))
    found = changes(old, new)
    facts = _facts(contents, older, old), _facts(contents, newer, new)
    return page_of(
        "difference.html",
        links,
        name,
        title,
        older=older,
        newer=newer,
        lede=_lede(found),
        found=found,
        facts=[(what, each, facts[1][what]) for what, each in facts[0].items()],
    )


def _lede(found: Sequence[CellChange]) -> str:
    kinds = Counter(each.kind for each in found)
    moved = [f"{count(kinds[kind], 'cell')} {_were(kinds[kind])} {kind}" for kind in MOVED if kinds[kind]]
    return "; ".join((_of_shared(found, kinds["changed"]), *moved)) + "."


def _of_shared(found: Sequence[CellChange], changed: int) -> str:
    shared = [each for each in found if each.kind not in MOVED]
    clear = [each for each in shared if each.is_clear]
    if not shared:
        return "No cell is in both"
    if not changed and not clear:
        where = "" if len(shared) == len(found) else " where both have a cell"
        return f"Both decode alike{where}, and neither promises clearly more"
    faster = sum(each.ratio is not None and each.ratio > 1.0 for each in clear)
    said = f"{count(changed, 'cell')} decode{'s' if changed == 1 else ''} differently"
    return f"{said}; {faster} promise clearly more, {len(clear) - faster} clearly less"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _facts(contents: Contents, row: PlanRow, plan: Plan) -> dict[str, str]:
    origin = plan.provenance
    regimes = {f"{contents.model_name(each.model)} {each.role}, {each.regime}" for each in origin.surfaces}
    return {
        "Device": contents.device_name(row.device),
        "Target": contents.model_name(row.target),
        "Workload": row.workload,
        "Sampling": sampling(row.temperature),
        "Number format": plan.dtype,
        "Latency bound": NONE if plan.bound is None else str(plan.bound),
        "Answers": NONE if plan.new_tokens is None else f"{plan.new_tokens:,} new tokens",
        "Cached of prompts": f"{100 * plan.cached_share:.3g} %" if plan.cached_share else NONE,
        "Drafters": ", ".join(name for name, _ in plan.drafters) or NONE,
        "Surfaces": "; ".join(sorted(regimes)) or NONE,
        "Cells timed": f"{sum(each.measurements for each in origin.surfaces):,}",
        "Positions replayed": f"{sum(each.positions for each in origin.traces):,}",
        "Candidates priced": f"{origin.candidates:,}",
        "spectune": origin.spectune,
        "Made": moment(row.created),
        "Content hash": Markup("<code>{}</code>").format(row.content_hash[:16]),
    }


Kind = Literal["same", "changed", "added", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """One batch and context in two plans; None where a plan lacks it. `ratio` is new predicted speed over old.

        change    = new / old speed
        is_clear  = |ln change| > sqrt(a^2 + b^2)

    a and b are the halves of the two 90 % intervals that face each other, in logarithms. Errors count as independent,
    though shared measurements share them: so what is called clear is clear, and some other change may be.
    """

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
