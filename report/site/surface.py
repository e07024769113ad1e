"""A latency surface: curves over tokens, every cell with its repeats, and how far to trust what lies between."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from ...errors import MeasurementError
from ...profiler.records.surface import LatencySurface, quantile
from ..figure import Figure, Grid, Panel
from ..surface import COLUMNS, WHENCE, cell_row, surface_figure
from .chart import charts, symbols
from .contents import Contents, SurfaceEntry
from .links import Links, surface_page
from .page import SitePage, page_of
from .words import moment


def surface_page_of(contents: Contents, links: Links, entry: SurfaceEntry) -> SitePage:
    """Return the page of a surface."""
    surface, model, fault = contents.surface(entry.key), contents.model_name(entry.key.model), ""
    device = contents.device_name(entry.key.device)
    figure: Figure | None = None
    try:
        figure = surface_figure(surface, device=device, model=model)
    except MeasurementError as error:
        fault = str(error)
    rows = tuple(cell_row(cell) for cell in surface.measurements)
    panels = () if figure is None else figure.panels
    curves = [panel for panel in panels if panel.label_title]
    return page_of(
        "surface.html",
        links,
        surface_page(entry.slug),
        f"{model}, {entry.key.role} on {device}",
        contents=contents,
        device=entry.key.device,
        model=model,
        heading=f"What one {entry.key.role} forward of {model} costs",
        lede=_lede(surface),
        facts=_facts(surface, entry),
        figure=figure,
        fault=fault,
        grid=Grid(columns=COLUMNS, rows=rows).filled() if figure is None else figure.grid,
        curves=curves,
        judged=[panel for panel in panels if not panel.label_title],
        controls=_controls(curves),
        symbols=symbols,
        charts=charts,
    )


def _lede(surface: LatencySurface) -> str:
    kernel = f", {surface.attention} attention" if surface.attention else ""
    return f"Milliseconds of one forward against tokens per sequence; {surface.regime}, {surface.dtype}{kernel}."


def _facts(surface: LatencySurface, entry: SurfaceEntry) -> Iterator[tuple[str, str | None]]:
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


_Group = tuple[str, str, str, list[tuple[str, str, bool]]]  # title, name and kind of inputs, then text, value, chosen
OTHER = {True: "linear", False: "logarithmic"}  # by whether the usual axis is logarithmic


def _controls(panels: Sequence[Panel]) -> Iterator[_Group]:
    """Yield the choices for panels of one kind."""
    if len(panels) > 1:
        yield "Show", "panel", "radio", [("all", "", True), *((each.title, each.title, False) for each in panels)]
    lines = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if line.label))
    if len(lines) > 1:
        yield panels[0].label_title.capitalize(), "line", "checkbox", [(each, each, True) for each in lines]
    for panel in panels[:1]:
        for side, title, axis, other in (
            ("y", "Time", panel.y, panel.other_y),
            ("x", "Tokens", panel.x, panel.other_x),
        ):
            if other is not None:
                spacings = [(OTHER[not axis.is_log], "usual", True), (OTHER[axis.is_log], "other", False)]
                yield title, side, "radio", spacings
