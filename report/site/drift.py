"""Promise against what was observed, for every plan that counts, cell by cell and over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.observation import moment_of
from ...planner.plans.plan import Plan
from ..axis import Axis, axis_of_times
from ..figure import Grid, LineSeries, Mark, Panel, ReferenceLine
from .chart import charts
from .contents import MOST_OBSERVATIONS, Contents, PlanSetup
from .kept import DRIFTED, KeptCell, kept_cells
from .links import DRIFT, Links
from .page import SitePage, page_of
from .span import scale_of
from .words import NONE, interval, moment, speed

STEPS = (0.25, 0.5, 1.0, 2.0, 6.0, 12.0, 24.0, 72.0, 168.0, 720.0, 2160.0)  # hours between ticks; then whole years
YEAR = 8760.0  # hours
MOST_SETUPS = 50
MOST_CHARTS = 6  # of one plan: drifted cells first, then those seen most
LEDE = (
    "What plans promised, beside what validations and decoders measured. Drifted is said by the test that decoders "
    f"use: of any {MOST_OBSERVATIONS} reports of a plan that keeps its promises it is said in one of a hundred cases."
)


def drift_page(contents: Contents, links: Links) -> SitePage:
    """Return how every plan that counts keeps its promises."""
    every = standings(contents, MOST_SETUPS)
    found = [each for each in every if each.measured]
    return page_of(
        "drift.html",
        links,
        DRIFT,
        "Drift",
        contents=contents,
        lede=LEDE,
        found=found,
        unseen=len(every) - len(found),
        left=len(contents.setups) - len(every),
        scale_of=scale_of,
        over_time=_over_time,
        drawn_of=_drawn,
        reports_of=_reports,
    )


def _over_time(each: Standing) -> list[KeptCell]:
    """Return the cells with a speed over time, drifted ones first, then those seen most."""
    seen = [kept for kept in each.measured if kept.blocks]
    return sorted(seen, key=lambda kept: (kept.verdict not in DRIFTED, -sum(one.rounds for one in kept.seen)))


def _drawn(seen: Sequence[KeptCell], place: str) -> list[Markup]:
    panels = [_panel(kept) for kept in seen[:MOST_CHARTS]]
    return charts(panels, place, f"{place}-over-time-table", has_strip=False)


def _reports(seen: Sequence[KeptCell]) -> Grid:
    rows = tuple(
        (
            f"{kept.cell.batch:,}",
            f"{kept.cell.context:,}",
            moment(one.began).striptags(),
            f"{one.rounds:,}",
            NONE if one.speed is None else speed(one.speed),
        )
        for kept in seen
        for one in kept.seen
    )
    return Grid(columns=("Batch", "Context", "Began", "Rounds", "tokens/s"), rows=rows)


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
