"""An acceptance trace: how good a drafter's choices are, by depth and rank, and how far its confidence is true."""

from __future__ import annotations

from collections.abc import Iterator

from ...db.rows import TraceRow
from ...profiler.confidence import step_reliability
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.calibration import Reliability, ReliabilityBin
from ..axis import Axis
from ..figure import LineSeries, Mark, Panel
from ..trace import trace_figure
from .chart import charts, legend
from .contents import Contents
from .grid import number, table, values
from .links import Links, anchor, trace_page
from .markup import Child, Html, joined, tag
from .page import SitePage, facts, head, note, part
from .words import TO, count, moment, sampling

SHARES = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def trace_page_of(contents: Contents, links: Links, row: TraceRow) -> SitePage:
    """Return the page of a trace."""
    trace = contents.trace(row.id)
    name, target = trace_page(row.id), contents.model_name(row.target)
    title = f"How often {trace.drafter_name} is right about {target}"
    confidence = step_reliability(trace)
    body = joined(
        head(
            f"Trace {row.id}",
            title,
            f"Recorded along {target}'s own text: {row.workload}, {sampling(row.temperature)}.",
        ),
        facts(_facts(trace, row, confidence)),
        _acceptance(trace, name, target),
        _calibration(name, confidence),
    )
    return SitePage(name=name, title=f"{trace.drafter_name} for {target}, {row.workload}", body=body)


def _facts(trace: AcceptanceTrace, row: TraceRow, confidence: Reliability) -> Iterator[tuple[str, Child]]:
    first = float(trace.rank_acceptance()[0])
    yield "First choice is right", f"{first:.1%} of positions"
    yield "Calibration error", f"{confidence.expected_error:.1%}, mean over children"
    yield "Workload", row.workload
    yield "Sampling", sampling(row.temperature)
    yield "Recorded", f"{count(len(trace.prompts), 'text')}, {count(trace.positions, 'position')}"
    yield "Choices kept per node", f"{trace.children}"
    yield "When", moment(row.created)


def _acceptance(trace: AcceptanceTrace, name: str, target: str) -> Html:
    prefix = anchor(name)
    figure = trace_figure(trace, target=target)
    said = note(
        "The share of positions at which the target's token is among the drafter's first choices, where everything "
        "above was right. Bars are 95 % intervals over texts.",
        [f" {fact[:1].upper()}{fact[1:]}." for fact in figure.facts[2:]],
    )
    drawn = charts(figure.panels, prefix, f"{prefix}-table", has_strip=figure.has_strip)
    grid = values(figure.grid, "Acceptance by depth and rank", f"{prefix}-table")
    return part(name, "acceptance", "Acceptance", said, tag("div", drawn, class_="panels"), grid)


def _calibration(name: str, confidence: Reliability) -> Html:
    prefix = anchor(name)
    said = note(
        "What the drafter says of a child, and how often that child is the target's token. On the dashed line it says "
        "what comes true; below it is too sure of itself."
    )
    drawn = charts([_reliability(confidence)], f"{prefix}-sure", f"{prefix}-sure-table", has_strip=False)
    columns = [number("Confidence, %"), number("Children"), number("Mean said"), number("Came true")]
    rows = [
        (
            f"{100 * one.low:.0f} {TO} {100 * one.high:.0f}",
            f"{one.count:,}",
            f"{one.confidence:.1%}",
            f"{one.frequency:.1%}",
        )
        for one in confidence.bins
    ]
    grid = table("Confidence and what came true", columns, rows, id=f"{prefix}-sure-table")
    symbols = legend([("line", "what came true, by tenths of confidence"), ("dashed line", "confidence that is true")])
    picture = tag("div", drawn)
    return part(name, "calibration", "Calibration", said, symbols, tag("div", picture, grid, class_="columns"))


def _reliability(confidence: Reliability) -> Panel:
    points = tuple((100.0 * one.confidence, 100.0 * one.frequency) for one in confidence.bins)
    own = LineSeries(label="", shade=None, marks=tuple(map(_mark, confidence.bins)), strokes=(points,), weight=1.5)
    exact = LineSeries(
        label="", shade=None, marks=(), strokes=(((0.0, 0.0), (100.0, 100.0)),), weight=0.6, is_dashed=True
    )
    return Panel(title="confidence and truth", x=_share("the drafter says"), y=_share("it is so"), lines=(exact, own))


def _mark(one: ReliabilityBin) -> Mark:
    text = f"said {one.confidence:.1%}\ncame true {one.frequency:.1%}\n{one.count:,} children"
    return Mark(kind="predicted", x=100.0 * one.confidence, y=100.0 * one.frequency, text=text)


def _share(title: str) -> Axis:
    return Axis(title=title, low=0.0, high=103.0, ticks=SHARES, unit="%")
