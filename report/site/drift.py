"""Promise against what was observed, for every plan that counts, cell by cell and over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.observation import moment_of
from ...planner.plans.plan import Plan
from ...planner.strategies.naming import name_of
from ..axis import Axis, axis_of_times
from ..figure import LineSeries, Mark, Panel, ReferenceLine
from .chart import charts
from .contents import MOST_OBSERVATIONS, Contents, PlanSetup
from .grid import number, table, under, words
from .kept import DRIFTED, KeptCell, kept_cells
from .links import DRIFT, Links, anchor, plan_page
from .markup import Html, joined, tag
from .page import SitePage, head, link, note
from .span import scale_of, span
from .words import NONE, apart, count, interval, moment, sampling, speed, times, verdict

STEPS = (0.25, 0.5, 1.0, 2.0, 6.0, 12.0, 24.0, 72.0, 168.0, 720.0, 2160.0)  # hours between ticks; then whole years
YEAR = 8760.0  # hours
MOST_SETUPS = 50
MOST_CHARTS = 6  # of one plan: drifted cells first, then those seen most


def drift_page(contents: Contents, links: Links) -> SitePage:
    """Return how every plan that counts keeps its promises."""
    every = standings(contents, MOST_SETUPS)
    found = [each for each in every if each.measured]
    lede = (
        "What plans promised, beside what validations and decoders measured. Drifted is said by the test that decoders "
        f"use: of any {MOST_OBSERVATIONS} reports of a plan that keeps its promises it is said in one of a hundred "
        "cases."
    )
    unseen = len(every) - len(found)
    more = note(f"Of {count(unseen, 'plan')} that count nothing they promise was measured yet.") if unseen else None
    left = len(contents.setups) - len(every)
    older = note(f"{count(left, 'older setup')} not looked at.") if left > 0 else None
    parts = [_plan(contents, links, each) for each in found]
    return SitePage(name=DRIFT, title="Drift", body=joined(head(None, "Drift", lede), parts, more, older))


def _plan(contents: Contents, links: Links, each: Standing) -> Html:
    assert each.row is not None, "what was measured has a plan"
    setup, name = each.setup, f"{anchor(DRIFT)}-plan-{each.row.id}"
    scale = scale_of(list(each.measured))
    rows = [
        (
            f"{kept.cell.batch:,}",
            f"{kept.cell.context:,}",
            name_of(kept.cell.policy.code, kept.cell.drafter),
            span(kept, scale),
            under(
                speed(kept.cell.prediction.tokens_per_s), interval(kept.cell.prediction.low, kept.cell.prediction.high)
            ),
            NONE if kept.measured_speed is None else under(speed(kept.measured_speed), _from(kept)),
            NONE if kept.measured_speedup is None else times(kept.measured_speedup),
            _tokens(kept),
            f"{kept.faults:,}",
            verdict(kept.verdict),
        )
        for kept in each.measured
    ]
    columns = [
        number("Batch"), number("Context"), words("Policy"), words("Over plain decoding"), number("Promised, tokens/s"),
        number("Measured, tokens/s"), number("Speed-up"), number("Tokens a round"), number("Faults"), words("Outcome"),
    ]  # fmt: skip
    title = f"{contents.model_name(setup.target)} on {contents.device_name(setup.device)}"
    filed = apart(setup.device, setup.workload)
    about = [
        f"{setup.workload}, {sampling(setup.temperature)}, ",
        link(links, plan_page(each.row.id), f"plan {each.row.id}"),
        f"; {filed}" if filed else None,
    ]
    grid = table(f"Plan {each.row.id}: measured cells", columns, rows, id=f"{name}-table")
    return tag("section", tag("h2", title), note(about), grid, _over_time(each, name), id=name)


def _from(kept: KeptCell) -> str:
    blocks, checks = len(kept.blocks), len(kept.validated)
    return count(blocks, "block") if blocks else count(checks, "validation")


def _tokens(kept: KeptCell) -> str | Html:
    """Return accepted tokens beside the promised ones: whether the texts are as easy as recorded."""
    promised = f"{kept.cell.prediction.tokens_per_round:.2f} promised"
    return NONE if kept.tokens_per_round is None else under(f"{kept.tokens_per_round:.2f}", promised)


def _over_time(each: Standing, name: str) -> Html | None:
    seen = [kept for kept in each.measured if kept.blocks]
    if not seen:
        return None
    chosen = sorted(seen, key=lambda kept: (kept.verdict not in DRIFTED, -sum(one.rounds for one in kept.seen)))
    panels = [_panel(kept) for kept in chosen[:MOST_CHARTS]]
    left = len(chosen) - len(panels)
    said = note(
        "Each dot is the median of a decoder's report, faint ones its blocks; reports without a whole block are in the "
        "table alone. Dashed are the ends of the promised interval."
        + (f" {count(left, 'cell')} less often seen not drawn." if left > 0 else "")
    )
    drawn = charts(panels, name, f"{name}-over-time", has_strip=False)
    return tag("div", tag("h3", "Over time"), said, tag("div", drawn, class_="panels"), _reports(chosen, name))


def _reports(chosen: Sequence[KeptCell], name: str) -> Html:
    rows = [
        (
            f"{kept.cell.batch:,}",
            f"{kept.cell.context:,}",
            moment(one.began),
            f"{one.rounds:,}",
            NONE if one.speed is None else speed(one.speed),
        )
        for kept in chosen
        for one in kept.seen
    ]
    columns = [number("Batch"), number("Context"), words("Began"), number("Rounds"), number("tokens/s")]
    summary = tag("summary", f"All {count(len(rows), 'report')} as a table")
    return tag("details", summary, table("Reports of decoders", columns, rows, id=f"{name}-over-time"), class_="values")


def _panel(kept: KeptCell) -> Panel:
    cell, promise = kept.cell, kept.cell.prediction
    told = [(moment_of(one.began), one.speed, one) for one in kept.seen if one.speed is not None]
    first = told[0][0]
    marks = tuple(
        Mark(
            kind="measured",
            x=(began - first).total_seconds() / 3600.0,
            y=middle,
            text="\n".join(
                (
                    one.began,
                    f"{speed(middle)} tokens/s",
                    f"{one.rounds:,} rounds, {len(one.speeds):,} blocks",
                    f"promised {speed(promise.tokens_per_s)}, {interval(promise.low, promise.high)}",
                )
            ),
            repeats=one.speeds,
        )
        for began, middle, one in told
    )
    stroke = tuple((mark.x, mark.y) for mark in marks if mark.y is not None)
    return Panel(
        title=f"batch {cell.batch:,}, context {cell.context:,}",
        x=_hours(max(mark.x for mark in marks), first),
        y=axis_of_times("tokens/s", [*kept.blocks, promise.high], is_log=False),
        lines=(
            LineSeries(label="", shade=None, marks=marks, strokes=(stroke,) if len(stroke) > 1 else (), weight=1.5),
        ),
        rules=tuple(_rules(promise.low, promise.high)),
    )


def _rules(low: float, high: float) -> Iterator[ReferenceLine]:
    yield ReferenceLine(y=low, label=speed(low))
    yield ReferenceLine(y=high, label=speed(high))


def _hours(most: float, first: datetime) -> Axis:
    span = max(most, 1.0)
    years = YEAR * math.ceil(span / YEAR / 8.0)
    step = next((each for each in STEPS if span / each <= 8.0), years)
    ticks = tuple(step * place for place in range(int(span / step) + 1))
    return Axis(title=f"hours since {first:%Y-%m-%d %H:%M} UTC", low=-0.04 * span, high=1.04 * span, ticks=ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One setup, its plan that counts, if any, and whether it keeps its promises; `fault`: why it cannot be read."""

    setup: PlanSetup
    row: PlanRow | None
    plan: Plan | None
    fault: str
    cells: tuple[KeptCell, ...]

    @property
    def drifted(self) -> tuple[KeptCell, ...]:
        """Cells that left the interval they promised, by the test that decoders use."""
        return tuple(cell for cell in self.cells if cell.verdict in DRIFTED)

    @property
    def measured(self) -> tuple[KeptCell, ...]:
        """Cells of which anything was measured."""
        return tuple(cell for cell in self.cells if cell.verdict != "unseen")


def standings(contents: Contents, most: int) -> list[Standing]:
    """Return the standing of at most so many setups, that of the newest plan first; a store may have thousands."""
    return [_standing(contents, setup) for setup in list(contents.setups)[:most]]


def _standing(contents: Contents, setup: PlanSetup) -> Standing:
    row = contents.counting(setup)
    if row is None:
        return Standing(setup=setup, row=None, plan=None, fault="", cells=())
    try:
        plan = contents.plan(row.id)
        validations, observations = contents.validations(row.id), contents.observations(row.id)
        cells = kept_cells(plan, validations.readable, observations.readable)
    except SpectuneError as error:
        return Standing(setup=setup, row=row, plan=None, fault=str(error), cells=())
    return Standing(setup=setup, row=row, plan=plan, fault="", cells=tuple(cells))
