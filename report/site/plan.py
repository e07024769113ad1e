"""A plan: what to run where, what that promises, what became of it, why, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.crossing import crossings, named
from ...planner.plans.plan import Plan
from ...planner.plans.promised import own_observations
from ..plan import plan_figure
from .cell import distance, explained, heat_table, place_of
from .chart import charts
from .contents import Contents, Observed, Validated, setup_of
from .kept import kept_cells
from .links import PLANS, Links, plan_page
from .origin import entry_of, neighbours, trace_of
from .page import SitePage, fault_page, page_of
from .span import scale_of
from .use import uses_of
from .words import count, engine_of, moment, sampling, times


def plan_page_of(contents: Contents, links: Links, row: PlanRow) -> SitePage:
    """Return the page of a plan; one that cannot be read says why."""
    name, engine = plan_page(row.id), engine_of(row.device, row.workload)
    heading = f"{contents.model_name(row.target)} on {contents.device_name(row.device)}"
    heading += f", for {engine}" if engine else ""
    try:
        plan = contents.plan(row.id)
    except SpectuneError as error:
        over = ((PLANS, "Plans"), (name, f"plan {row.id}, version {row.version}"))
        return fault_page(links, name, heading, over=over, what="cannot be read", why=str(error))
    observed, validated, counting = (
        contents.observations(row.id),
        contents.validations(row.id),
        contents.counting(setup_of(row)),
    )
    cells = kept_cells(plan, validated.readable, observed.readable)
    return page_of(
        "plan.html",
        links,
        name,
        f"Plan {row.id}: {heading}",
        contents=contents,
        heading=heading,
        lede=_lede(plan),
        tiles=list(_tiles(plan)),
        uses=list(uses_of(plan)),
        row=row,
        plan=plan,
        engine=engine,
        counting=counting,
        is_counting=counting is not None and counting.id == row.id,
        facts=_facts(row, plan),
        heat=heat_table(cells, links, name),
        cells=cells,
        scale=scale_of(cells),
        left_out=_left_out(plan, observed, validated),
        distance=distance,
        figure=plan_figure(plan),
        charts=charts,
        explained=partial(explained, plan=plan),
        place_of=place_of,
        entry_of=partial(entry_of, contents, row),
        trace_of=partial(trace_of, contents, row),
        sources=contents.store.plan_sources(row.id),
        neighbours=list(neighbours(contents, links, row)),
    )


def _lede(plan: Plan) -> str:
    speculating = [cell for cell in plan.cells if cell.drafter is not None]
    if not speculating:
        return "Decode plainly everywhere: no speculation that was priced would pay."
    most = max(cell.prediction.speedup_over_plain for cell in speculating)
    where = (
        "in every cell" if len(speculating) == len(plan.cells) else f"in {len(speculating)} of {len(plan.cells)} cells"
    )
    return f"Speculate {where}, up to {times(most)} as fast as plain decoding."


def _tiles(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield up to which batch speculation pays at each context, short and in words."""
    for each in crossings(plan):
        where = f"speculation pays at context {each.context:,}"
        if each.last is None:
            yield "nowhere", where
            continue
        most = each.last if each.batch is None else max(each.last, round(each.batch))
        beyond = "; larger batches are not planned" if each.first_plain is None else ""
        but = f", except at {named(each.plain_below)}" if each.plain_below else ""
        yield f"up to batch {most:,}", f"{where}{but}{beyond}"


def _facts(row: PlanRow, plan: Plan) -> Iterator[tuple[str, str | None]]:
    yield "Workload", row.workload
    yield "Sampling", sampling(row.temperature)
    yield "Number format", plan.dtype
    yield "Drafters", ", ".join(name for name, _ in plan.drafters)
    yield "Latency bound", None if plan.bound is None else str(plan.bound)
    read = f"that are read but for {100 * plan.cached_share:.3g} % of each" if plan.cached_share else "that are read"
    yield "Answers", None if plan.new_tokens is None else f"{plan.new_tokens:,} new tokens behind prompts {read}"
    yield "Made", moment(row.created)


def _left_out(plan: Plan, observed: Observed, validated: Validated) -> str:
    elsewhere = len(observed.readable) - len(own_observations(plan, observed.readable))
    found = (
        (elsewhere, f"{count(elsewhere, 'report')} of decoders left out: of another device or number format."),
        (observed.damaged, f"{count(observed.damaged, 'report')} of decoders cannot be read."),
        (validated.damaged, f"{count(validated.damaged, 'validation')} cannot be read."),
    )
    return "".join(f" {sentence}" for left, sentence in found if left)
