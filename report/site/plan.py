"""A plan: what to run where, what that promises, what became of it, why, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.crossing import crossings, named
from ...planner.plans.plan import Plan
from ...planner.plans.promised import own_observations
from ...planner.strategies.naming import name_of
from ..figure import Figure
from ..plan import plan_figure
from .cell import cell_details, distance, heat_table
from .chart import charts, legend
from .contents import Contents, Observed, Validated, setup_of
from .grid import number, table, under, values, words
from .kept import KeptCell, kept_cells
from .links import PLANS, Links, anchor, device_page, plan_page
from .markup import Child, Html, joined, tag
from .origin import events_part, origin_part
from .page import SitePage, facts, head, link, note, part
from .span import scale_of, span
from .words import (
    NONE,
    TO,
    count,
    engine_of,
    interval,
    is_guess,
    moment,
    plan_state,
    sampling,
    speed,
    status,
    times,
    verdict,
)


def plan_page_of(contents: Contents, links: Links, row: PlanRow) -> SitePage:
    """Return the page of a plan; one that cannot be read says why."""
    name = plan_page(row.id)
    target, engine = contents.model_name(row.target), engine_of(row.device, row.workload)
    device = contents.device_name(row.device) + (f", for {engine}" if engine else "")
    over = [link(links, PLANS, "Plans"), f" / plan {row.id}, version {row.version}"]
    try:
        plan = contents.plan(row.id)
    except SpectuneError as error:
        body = joined(head(over, f"{target} on {device}", status("cannot be read", "warning")), note(str(error)))
        return SitePage(name=name, title=f"Plan {row.id}", body=body)
    observed, validated = contents.observations(row.id), contents.validations(row.id)
    cells = kept_cells(plan, validated.readable, observed.readable)
    figure = plan_figure(plan)
    body = joined(
        head(over, f"{target} on {device}", _lede(plan)),
        facts(_facts(contents, links, row, plan)),
        _heat(cells, links, name),
        _outcome(cells, links, name, _left_out(plan, observed, validated)),
        _speeds(figure, name),
        _trees(figure, name),
        _explained(cells, plan, name),
        origin_part(contents, links, row, plan),
        events_part(contents, links, row),
    )
    return SitePage(name=name, title=f"Plan {row.id}: {target} on {device}", body=body)


def _lede(plan: Plan) -> str:
    speculating = [cell for cell in plan.cells if cell.drafter is not None]
    if not speculating:
        return "Decode plainly everywhere: no speculation that was priced would pay."
    most = max(cell.prediction.speedup_over_plain for cell in speculating)
    where = (
        "in every cell" if len(speculating) == len(plan.cells) else f"in {len(speculating)} of {len(plan.cells)} cells"
    )
    return f"Speculate {where}, up to {times(most)} as fast as plain decoding. {_ends(plan)}".strip()


def _ends(plan: Plan) -> str:
    ends = [
        f"at context {each.context:,}"
        + ("" if each.batch is None else f" up to a batch of about {each.batch:.0f}")
        + (f" except at {named(each.plain_below)}" if each.plain_below else "")
        for each in crossings(plan)
        if each.batch is not None or each.plain_below
    ]
    return f"It pays {'; '.join(ends)}." if ends else ""


def _facts(contents: Contents, links: Links, row: PlanRow, plan: Plan) -> Iterator[tuple[str, Child]]:
    counting = contents.counting(setup_of(row))
    is_counting = counting is not None and counting.id == row.id
    instead = None if counting is None else link(links, plan_page(counting.id), f"plan {counting.id} counts instead")
    engine = engine_of(row.device, row.workload)
    yield "Counts", _follows(row, engine) if is_counting else joined("no; ", instead or "none does")
    yield "State", plan_state(row.state)
    yield "Device", link(links, device_page(plan.device.fingerprint), contents.label(plan.device))
    yield (
        "Rests on",
        status("a guess, not measured there", "open") if is_guess(row.device) else "measurements of this device",
    )
    yield "Workload", row.workload
    yield "Sampling", sampling(row.temperature)
    yield "Number format", plan.dtype
    yield "Drafters", ", ".join(name for name, _ in plan.drafters)
    yield "Latency bound", None if plan.bound is None else str(plan.bound)
    read = f"that are read but for {100 * plan.cached_share:.3g} % of each" if plan.cached_share else "that are read"
    yield "Answers", None if plan.new_tokens is None else f"{plan.new_tokens:,} new tokens behind prompts {read}"
    yield "Made", moment(row.created)
    yield "Content hash", tag("code", row.content_hash[:16])


def _follows(row: PlanRow, engine: str | None) -> Html:
    if engine is not None:
        return status(f"yes, for {engine}; our decoder does not follow it", "good")
    if is_guess(row.device):
        return status("yes, among guesses; decoders follow it where no measured plan fits", "open")
    return status("yes, decoders follow it", "good")


def _heat(cells: Sequence[KeptCell], links: Links, name: str) -> Html:
    said = note("One cell per batch and context; a decoder follows the nearest. Choose one to see why.")
    return part(name, "cells", "What to run", said, heat_table(cells, links, name))


def _outcome(cells: list[KeptCell], links: Links, name: str, left_out: str) -> Html:
    scale = scale_of(cells)
    rows = [
        (
            f"{kept.cell.batch:,}",
            f"{kept.cell.context:,}",
            span(kept, scale),
            *_promised(kept),
            *_measured(kept),
            verdict(kept.verdict),
            _runner_up(kept),
        )
        for kept in cells
    ]
    columns = [
        number("Batch"), number("Context"), words("Over plain decoding"), number("Predicted, tokens/s"),
        number("Predicted speed-up"), number("Measured, tokens/s"), number("Measured speed-up"), words("Outcome"),
        words("Runner-up, and the lead over it"),
    ]  # fmt: skip
    said = note(
        "The bar is the promised interval of the speed-up, the dot what is predicted, the diamond what was measured; "
        f"dashed is plain decoding.{left_out}"
    )
    return part(
        name,
        "outcome",
        "Promise and outcome",
        said,
        table("Every cell: promised, measured, and the runner-up", columns, rows),
    )


def _left_out(plan: Plan, observed: Observed, validated: Validated) -> str:
    elsewhere = len(observed.readable) - len(own_observations(plan, observed.readable))
    found = (
        (elsewhere, f"{count(elsewhere, 'report')} of decoders left out: of another device or number format."),
        (observed.damaged, f"{count(observed.damaged, 'report')} of decoders cannot be read."),
        (validated.damaged, f"{count(validated.damaged, 'validation')} cannot be read."),
    )
    return "".join(f" {sentence}" for left, sentence in found if left)


def _promised(kept: KeptCell) -> tuple[Html, Html]:
    promise = kept.cell.prediction
    factors = f"{promise.speedup_low:.2f}{TO}{promise.speedup_high:.2f}"
    return (
        under(speed(promise.tokens_per_s), interval(promise.low, promise.high)),
        under(times(promise.speedup_over_plain), factors),
    )


def _measured(kept: KeptCell) -> tuple[Child, Child]:
    seen, factor = kept.measured_speed, kept.measured_speedup
    if seen is None:
        return NONE, NONE
    how = count(len(kept.blocks), "block") if kept.blocks else count(len(kept.validated), "validation")
    return under(speed(seen), how), NONE if factor is None else times(factor)


def _runner_up(kept: KeptCell) -> Child:
    other = kept.cell.runner_up
    return "none" if other is None else under(name_of(other.label, other.drafter), distance(kept.cell))


def _speeds(figure: Figure, name: str) -> Html:
    prefix = anchor(name)
    panels = [panel for panel in figure.panels if panel.x.title == "batch"]
    drawn = charts(panels, prefix, f"{prefix}-table", has_strip=figure.has_strip)
    grid = values(figure.grid, "The plan, its runner-up, published defaults and trees", f"{prefix}-table")
    said = note("The plan beside its runner-up and every published default, each with its fastest drafter.")
    kind = "panels has-names" if len(drawn) > 1 else "panels is-single"
    return part(name, "speeds", "Beside its rivals", said, legend(figure.legend), tag("div", drawn, class_=kind), grid)


def _trees(figure: Figure, name: str) -> Html | None:
    panels = [panel for panel in figure.panels if panel.x.title != "batch"]
    if not panels:
        return None
    prefix = anchor(name)
    said = note(
        "Depth runs from left to right. A line is as wide as the share of rounds that take its token; where a tree "
        "differs from round to round, dots are the tokens verified at a depth on average."
    )
    drawn = charts(panels, f"{prefix}-tree", f"{prefix}-table", has_strip=False)
    return part(name, "trees", "The trees it drafts", said, tag("div", drawn, class_="panels"))


def _explained(cells: Sequence[KeptCell], plan: Plan, name: str) -> Html:
    details = [cell_details(kept, plan, name) for kept in cells]
    return part(name, "why", "Cell by cell", tag("div", details, class_="cells"))
