"""A figure as a PNG, drawn by matplotlib; the same marks, colours and labels as on a page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .figure import Figure, Kind, LineSeries, Mark, Panel, Side, Symbol
from .labels import end_labels
from .palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

DOTS_PER_INCH = 160
PLOT_WIDTH, PANEL_HEIGHT = 3.23, 3.8  # inches, the panel's with its margins
LEFT, TOP, BOTTOM = 0.62, 0.6, 0.58  # margins of a plot, inches
LABEL_ROOM = 0.85  # right of a plot, for short labels, inches
CHARACTER = 0.077  # width of one, of a longer label, inches
LEAST_WIDTH = 9.4  # of a picture, inches, so that its head fits
FACT_HEIGHT = 0.21
POINTS = 72.0  # per inch
LABEL_GAP = 11.0  # points
LEAD, LONG_LEAD = 4.6, 14.0  # points, how far right a stroke leads to a label that had to move
NOTE_SIDES: Mapping[Side, tuple[float, float, str, str]] = {  # points right of its place and above it, alignment
    "above": (0.0, 5.0, "center", "bottom"),
    "above right": (2.0, 3.0, "left", "bottom"),
    "middle": (0.0, 0.0, "center", "center_baseline"),
    "left": (-4.0, 0.0, "right", "center_baseline"),
}
STRIP = 0.07  # of a plot's height, above it, where marks without a height stand
BESIDE = 7.0  # points, between a plot and what stands right of it
SMALL, TINY = 8.5, 7.5  # points, of text
DOT, STROKE = 4.4, 1.7  # points, a dot's diameter and a stroke's width


def png_image(figure: Figure) -> bytes:
    """Return a figure as a PNG image, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    panel_width = LEFT + PLOT_WIDTH + max(_label_room(panel) for panel in figure.panels)
    rows = 1 + max(row for row, _ in figure.places)
    head = 0.85 + FACT_HEIGHT * (len(figure.facts) + 1)
    width, height = max(figure.columns * panel_width, LEAST_WIDTH), head + rows * PANEL_HEIGHT
    canvas = Canvas(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=LIGHT.background)
    FigureCanvasAgg(canvas)
    _write_head(canvas, figure)
    for panel, (row, column) in zip(figure.panels, figure.places, strict=True):
        left, bottom = column * panel_width + LEFT, height - head - (row + 1) * PANEL_HEIGHT + BOTTOM
        size = (panel_width - LEFT - _label_room(panel), PANEL_HEIGHT - TOP - BOTTOM)
        axes = canvas.add_axes((left / width, bottom / height, size[0] / width, size[1] / height))
        _draw(axes, panel, _Plot(width=size[0] * POINTS, height=size[1] * POINTS, has_strip=figure.has_strip))
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Title": figure.title, "Software": "spectune"})
    return file.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    width: float
    height: float
    has_strip: bool


def _label_room(panel: Panel) -> float:
    lead = LONG_LEAD / POINTS
    return 0.12 + lead + CHARACTER * panel.label_length if panel.has_long_labels else LABEL_ROOM


def _write_head(canvas: Canvas, figure: Figure) -> None:
    width, height = canvas.get_size_inches()

    def at(inches: float) -> float:
        return float(1.0 - inches / height)

    margin = 0.2 / width
    canvas.text(margin, at(0.42), figure.title, parse_math=False, size=14, weight="bold", color=LIGHT.text)
    for line, fact in enumerate(figure.facts):
        canvas.text(margin, at(0.72 + line * FACT_HEIGHT), fact, parse_math=False, size=9.5, color=LIGHT.faint_text)
    legend = canvas.add_axes((0.0, at(0.84 + len(figure.facts) * FACT_HEIGHT), 1.0, 0.2 / height))
    legend.set(xlim=(0.0, width), ylim=(-1.0, 1.0))
    legend.axis("off")
    left = 0.27
    for symbol, meaning in figure.legend:
        _draw_symbol(legend, left, symbol)
        text = legend.text(left + 0.15, 0.0, meaning, parse_math=False, size=SMALL, va="center", color=LIGHT.faint_text)
        left += 0.45 + text.get_window_extent().width / DOTS_PER_INCH


def _draw_symbol(axes: Axes, left: float, symbol: Symbol) -> None:
    if symbol in ("line", "dashed line"):
        dashes = (0, (2.2, 1.2)) if symbol == "dashed line" else "solid"
        axes.plot([left - 0.08, left + 0.08], [0.0, 0.0], color=LIGHT.text, linewidth=1.8, linestyle=dashes)
        return
    axes.plot([left], [0.0], **_style(symbol, LIGHT.text))
    if symbol != "failed":
        axes.plot([left, left], [-0.9, 0.9], color=LIGHT.text, linewidth=1.3, zorder=1)


def _style(symbol: Symbol | Kind, colour: str, size: float = 1.0) -> dict[str, Any]:  # Any: keywords of matplotlib
    plain: dict[str, Any] = {"color": colour, "linestyle": "none", "clip_on": False, "zorder": 2}
    if symbol == "failed":
        return plain | {"marker": "x", "markersize": 5.5, "markeredgewidth": 1.6}
    if symbol == "held-out":
        return plain | {"marker": "D", "markersize": 4.6, "markerfacecolor": LIGHT.background, "markeredgewidth": 1.2}
    return plain | {"marker": "o", "markersize": DOT * size, "markeredgewidth": 0.0}


def _draw(axes: Axes, panel: Panel, plot: _Plot) -> None:
    _draw_axes(axes, panel)
    _write_titles(axes, panel, plot)
    for rule in panel.rules:
        axes.axhline(rule.y, color=LIGHT.faint_text, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.text(1.0 + BESIDE / plot.width, panel.y.place(rule.y), rule.label, va="center", **_small(axes))
    for line in panel.lines:
        _draw_line(axes, panel, line)
    _draw_labels(axes, panel, plot)
    _write_notes(axes, panel, plot)


def _draw_line(axes: Axes, panel: Panel, line: LineSeries) -> None:
    colour, dashes = LIGHT.shade(line.shade), (0, (3.0, 2.4)) if line.is_dashed else "solid"
    for dot in line.dots:
        axes.plot([dot.x], [dot.y], **_style("node", colour, dot.size))
    for mark in line.marks:
        _draw_mark(axes, panel, mark, colour)
    for stroke in line.strokes:
        look: dict[str, Any] = {"color": colour, "linewidth": STROKE * line.weight, "linestyle": dashes}
        axes.plot(*zip(*stroke, strict=True), solid_joinstyle="round", solid_capstyle="round", zorder=2, **look)


def _draw_axes(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_facecolor("none")
    for name, axis in (("x", panel.x), ("y", panel.y)):
        drawn = axes.xaxis if name == "x" else axes.yaxis
        axes.set(**{f"{name}scale": "log" if axis.is_log else "linear", f"{name}lim": (axis.low, axis.high)})
        drawn.set_major_locator(FixedLocator(list(axis.ticks)))
        drawn.set_minor_locator(NullLocator())
        drawn.set_major_formatter(FuncFormatter(lambda value, _place, axis=axis: axis.label(value)))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT.faint_text)
    axes.tick_params(colors=LIGHT.faint_text, labelsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=LIGHT.rule, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(panel.x.title, parse_math=False, size=SMALL, color=LIGHT.faint_text)


def _write_titles(axes: Axes, panel: Panel, plot: _Plot) -> None:
    above = 1.04 + (STRIP if plot.has_strip else 0.0)
    axes.text(0.0, above, panel.y.title, **_small(axes))
    axes.text(1.0 + BESIDE / plot.width, above, panel.label_title, **_small(axes))
    if any(mark.y is None for mark in panel.marks):
        axes.text(-0.02, 1.0 + STRIP / 2, panel.strip_title, ha="right", va="center", **_small(axes))
    heading = {"size": 10.5, "weight": "bold", "color": LIGHT.text}
    axes.text(0.0, above + 0.085, panel.title, **_small(axes) | heading)


def _small(axes: Axes) -> dict[str, Any]:  # Any: keywords of matplotlib's texts
    return {"transform": axes.transAxes, "size": SMALL, "color": LIGHT.faint_text, "parse_math": False}


def _draw_mark(axes: Axes, panel: Panel, mark: Mark, colour: str) -> None:
    if mark.y is None:
        axes.plot([panel.x.place(mark.x)], [1.0 + STRIP / 2], transform=axes.transAxes, **_style(mark.kind, colour))
        return
    if mark.low is not None and mark.high is not None:
        axes.plot([mark.x, mark.x], [mark.low, mark.high], color=colour, linewidth=1.3, zorder=2)
    axes.plot([mark.x], [mark.y], **_style(mark.kind, colour, mark.size))


def _draw_labels(axes: Axes, panel: Panel, plot: _Plot) -> None:
    for label in end_labels(panel, LABEL_GAP / plot.height):
        x, colour = label.x + 5.8 / plot.width, LIGHT.shade(label.line.shade)
        lead = LONG_LEAD if panel.has_long_labels else LEAD
        if label.is_led:
            places = [label.end_x + 3.5 / plot.width, x - 2.3 / plot.width, x + lead / plot.width]
            leader = (places, [label.end, label.end, label.height])
            axes.plot(*leader, transform=axes.transAxes, color=colour, linewidth=0.8, alpha=0.6, clip_on=False)
            x += (lead + 2.4) / plot.width
        look = {"va": "center", "weight": "bold", "color": LIGHT.text}
        axes.text(x, label.height, label.line.label, **_small(axes) | look)


def _write_notes(axes: Axes, panel: Panel, plot: _Plot) -> None:
    for note in panel.notes:
        aside, above, *stands = NOTE_SIDES[note.side]
        place = (panel.x.place(note.x) + aside / plot.width, panel.y.place(note.y) + above / plot.height)
        look = {"ha": stands[0], "va": stands[1], "size": TINY}
        colour = LIGHT.faint_text if note.is_faint else LIGHT.text
        axes.text(*place, note.text, **_small(axes) | look | {"color": colour})
