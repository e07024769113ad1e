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
from .chart import charts
from .contents import Contents
from .links import Links, trace_page
from .page import SitePage, page_of
from .words import count, moment, sampling

SHARES = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def trace_page_of(contents: Contents, links: Links, row: TraceRow) -> SitePage:
    """Return the page of a trace."""
    trace = contents.trace(row.id)
    target, confidence = contents.model_name(row.target), step_reliability(trace)
    return page_of(
        "trace.html",
        links,
        trace_page(row.id),
        f"{trace.drafter_name} for {target}, {row.workload}",
        heading=f"How often {trace.drafter_name} is right about {target}",
        row=row,
        target=target,
        facts=_facts(trace, row, confidence),
        figure=trace_figure(trace, target=target),
        confidence=confidence,
        reliability=_reliability(confidence),
        charts=charts,
    )


def _facts(trace: AcceptanceTrace, row: TraceRow, confidence: Reliability) -> Iterator[tuple[str, str]]:
    first = float(trace.rank_acceptance()[0])
    yield "First choice is right", f"{first:.1%} of positions"
    yield "Calibration error", f"{confidence.expected_error:.1%}, mean over children"
    yield "Workload", row.workload
    yield "Sampling", sampling(row.temperature)
    yield "Recorded", f"{count(len(trace.prompts), 'text')}, {count(trace.positions, 'position')}"
    yield "Choices kept per node", f"{trace.children}"
    yield "When", moment(row.created)


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
