"""What a plan says in one line per context: how to decode, how much faster that is, and up to which batch."""

from __future__ import annotations

from ...profiler.records.role import origin_of
from ..plans.crossing import Crossing, crossings
from ..plans.plan import Plan, PlanCell
from ..strategies.naming import name_of
from .explain import out_of_reach

MOST_BEYOND = 2.0  # times the longest timed context; beyond its price says nothing
MOST_OFF = 0.25  # relative error of a cell's timings beyond which its prediction says nothing


def verdict_lines(plan: Plan) -> list[str]:
    """Return a line per context, of its smallest batch that speculates, and what warns of the plan."""
    is_one = len({cell.context for cell in plan.cells}) == 1
    lines = [("" if is_one else f"context {each.context}, ") + _line(plan, each) for each in crossings(plan)]
    return [*lines, *warnings_of(plan)]


def warnings_of(plan: Plan) -> list[str]:
    """Return why a plan should not be followed unseen: timings, contexts or a latency bound; empty for a sound one."""
    missed = out_of_reach(plan)
    return [*_off(plan), *_beyond(plan), *([missed] if missed else [])]


def _beyond(plan: Plan) -> list[str]:
    priced = [(cell.context, cell.priced_at) for cell in plan.cells if cell.priced_at is not None]
    far = {(context, nearest) for context, nearest in priced if context > MOST_BEYOND * nearest}
    if not far:
        return []
    told = ",".join(map(str, sorted({context for context, _ in far})))
    longest = max(nearest for _, nearest in far)
    return [
        f"context {told} is priced as {longest}, the longest that was timed, and may be far off: profile "
        f"with --context {told}"
    ]


def _off(plan: Plan) -> list[str]:
    off = max(cell.prediction.errors.surfaces for cell in plan.cells)
    if off <= MOST_OFF or any(origin_of(source.regime) != "measured" for source in plan.provenance.surfaces):
        return []
    return [
        f"timings are off by about {off:.0%}, too far for this plan: profile again with nothing else running (--fresh)"
    ]


def _line(plan: Plan, crossing: Crossing) -> str:
    cells = sorted((cell for cell in plan.cells if cell.context == crossing.context), key=lambda cell: cell.batch)
    first = next((cell for cell in cells if cell.drafter is not None), None)
    if first is None:
        batches = f"batch {cells[0].batch}" if len(cells) == 1 else f"batch {cells[0].batch} to {cells[-1].batch}"
        return f"{batches}: plain decoding, no drafter pays"
    return "; ".join([f"batch {first.batch}: {_choice(first)}", *_ends(crossing, len(cells))])


def _choice(cell: PlanCell) -> str:
    promise = cell.prediction
    interval = f"{promise.speedup_low:.2f} to {promise.speedup_high:.2f}"
    missed = "" if cell.keeps_bound else ", breaks the latency bound"
    return f"{name_of(cell.policy.code, cell.drafter)}, {promise.speedup_over_plain:.2f} x ({interval}){missed}"


def _ends(crossing: Crossing, planned: int) -> list[str]:
    """Return up to which batch speculation pays, and where below it does not."""
    below = [f"not at batch {', '.join(map(str, crossing.plain_below))}"] if crossing.plain_below else []
    if crossing.last is None or planned == 1:
        return below
    if crossing.batch is None or crossing.first_plain is None:
        return [f"pays up to batch {crossing.last}, the largest planned", *below]
    last = max(crossing.last, min(int(crossing.batch), crossing.first_plain - 1))
    return [f"stops paying above batch {last}", *below]
