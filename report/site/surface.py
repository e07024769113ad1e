"""A latency surface: curves over tokens, every cell with its repeats, and how far to trust what lies between."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from ...errors import MeasurementError
from ...profiler.records.surface import LatencySurface, quantile
from ..axis import Axis
from ..figure import Figure, Grid, Panel
from ..surface import COLUMNS, WHENCE, cell_row, surface_figure
from .chart import charts, legend, symbols
from .contents import Contents, SurfaceEntry
from .grid import values
from .links import Links, anchor, device_page, surface_page
from .markup import Child, Html, joined, tag
from .page import SitePage, facts, head, link, note, part
from .words import moment


def surface_page_of(contents: Contents, links: Links, entry: SurfaceEntry) -> SitePage:
    """Return the page of a surface."""
    surface = contents.surface(entry.key)
    name, model = surface_page(entry.slug), contents.model_name(entry.key.model)
    title = f"What one {entry.key.role} forward of {model} costs"
    device = contents.device_name(entry.key.device)
    over = ["Surface on ", link(links, device_page(entry.key.device), device)]
    body = joined(
        head(over, title, _lede(surface)), facts(_facts(surface, entry)), _curves(surface, name, device, model)
    )
    return SitePage(name=name, title=f"{model}, {entry.key.role} on {device}", body=body)


def _lede(surface: LatencySurface) -> str:
    kernel = f", {surface.attention} attention" if surface.attention else ""
    return f"Milliseconds of one forward against tokens per sequence; {surface.regime}, {surface.dtype}{kernel}."


def _facts(surface: LatencySurface, entry: SurfaceEntry) -> Iterator[tuple[str, Child]]:
    failed = sum(cell.failure is not None for cell in surface.measurements)
    errors = [each.error for each in surface.held_out()]
    noise = surface.repeat_noise()
    yield "Origin", WHENCE[surface.origin]
    yield "Cells", f"{len(surface.measurements):,}" + (f", {failed} could not run" if failed else "")
    yield "Repeats", f"{sum(len(cell.repeats_ms) for cell in surface.measurements):,}"
    yield "Error at held-out cells", _held_out(errors)
    yield "Noise of a repeat", f"{statistics.median(noise):.1%} median" if noise else None
    yield "Drift of the session", f"{surface.drift():.1%}" if surface.origin == "measured" else None
    yield "Newest", moment(entry.newest) if entry.newest else None


def _held_out(errors: Sequence[float]) -> str | None:
    if not errors:
        return None
    return f"{statistics.median(errors):.1%} median, {quantile(errors, 0.95):.1%} at the 95th percentile"


def _curves(surface: LatencySurface, name: str, device: str, model: str) -> Html:
    prefix = anchor(name)
    try:
        figure = surface_figure(surface, device=device, model=model)
    except MeasurementError as fault:
        rows = tuple(cell_row(cell) for cell in surface.measurements)
        grid = Grid(columns=COLUMNS, rows=rows).filled()
        return part(name, "curves", "Cells", note(str(fault)), values(grid, "Every cell", f"{prefix}-table"))
    curves = [panel for panel in figure.panels if panel.label_title]
    judged = [panel for panel in figure.panels if not panel.label_title]
    table = values(figure.grid, f"{model}: every timed cell, milliseconds", f"{prefix}-table")
    return joined(_curve_part(name, prefix, figure, curves, table), _error_part(name, prefix, figure, judged))


def _curve_part(name: str, prefix: str, figure: Figure, curves: Sequence[Panel], table: Html) -> Html:
    place = f"{prefix}-panels"
    drawn = charts(curves, prefix, f"{prefix}-table", has_strip=figure.has_strip)
    panels = tag("div", drawn, class_="panels" if len(drawn) > 1 else "panels is-single", id=place)
    said = note(
        "One curve per context. Bars are the standard error of a cell's median, faint dots its raw repeats. Where a "
        "dotted line runs below a curve, a forward is cheaper padded to a larger measured shape."
    )
    return part(
        name, "curves", "Latency", said, controls(place, curves), legend(symbols(figure.legend, curves)), panels, table
    )


def _error_part(name: str, prefix: str, figure: Figure, judged: Sequence[Panel]) -> Html | None:
    if not judged:
        return None
    said = note(
        "Shapes drawn at random before anything was timed, measured along with the rest, and no part of the surface. "
        "What the surface says of each, relative to what was measured; dashed is the 95th percentile."
    )
    drawn = charts(judged, f"{prefix}-held", f"{prefix}-table", has_strip=figure.has_strip)
    return part(name, "held-out", "How far to trust it", said, tag("div", drawn, class_="panels"))


OTHER = {True: "linear", False: "logarithmic"}  # by whether the usual axis is logarithmic


def controls(place: str, panels: Sequence[Panel]) -> Html:
    """Return the choices for panels of one kind, in the element of that id; hidden until the script runs."""
    return tag("form", list(_groups(place, panels)), class_="controls", data_panels=place, hidden=True)


def _groups(place: str, panels: Sequence[Panel]) -> Iterator[Html]:
    if len(panels) > 1:
        choices = [("all", "", True), *((panel.title, panel.title, False) for panel in panels)]
        yield _group("Show", "panel", "radio", choices)
    lines = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if line.label))
    if len(lines) > 1:
        yield _group(panels[0].label_title.capitalize(), "line", "checkbox", [(each, each, True) for each in lines])
    for side, title, axis, other in (
        ("y", "Time", panels[0].y, panels[0].other_y),
        ("x", "Tokens", panels[0].x, panels[0].other_x),
    ):
        if other is not None:
            yield _group(title, side, "radio", _spacings(axis))


def _spacings(axis: Axis) -> list[tuple[str, str, bool]]:
    return [(OTHER[not axis.is_log], "usual", True), (OTHER[axis.is_log], "other", False)]


def _group(title: str, name: str, kind: str, choices: Sequence[tuple[str, str, bool]]) -> Html:
    labels = [
        tag("label", tag("input", type=kind, name=name, value=value, checked=is_chosen), tag("span", text))
        for text, value, is_chosen in choices
    ]
    return tag("fieldset", tag("legend", title), labels)
