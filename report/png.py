"""A figure as a PNG, drawn by matplotlib; the same marks, colours and labels as on a page."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from .figure import Figure, Mark, Panel, Symbol
from .labels import end_labels
from .palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

DOTS_PER_INCH = 160
PANEL_WIDTH, PANEL_HEIGHT = 4.7, 3.8  # inches, with their margins
LEFT, RIGHT, TOP, BOTTOM = 0.62, 0.85, 0.6, 0.58  # margins of a plot, inches
FACT_HEIGHT = 0.21
POINTS = 72.0  # per inch
LABEL_GAP = 11.0  # points
STRIP = 0.07  # of a plot's height, above it, where marks without a height stand
SMALL = 8.5  # points, of text


def png_image(figure: Figure) -> bytes:
    """Return a figure as a PNG image, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    columns = figure.columns
    rows = math.ceil(len(figure.panels) / columns)
    head = 0.85 + FACT_HEIGHT * (len(figure.facts) + 1)
    width, height = max(columns, 2) * PANEL_WIDTH, head + rows * PANEL_HEIGHT
    canvas = Canvas(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=LIGHT.background)
    FigureCanvasAgg(canvas)
    _write_head(canvas, figure)
    for place, panel in enumerate(figure.panels):
        left = (place % columns) * PANEL_WIDTH + LEFT
        bottom = height - head - (place // columns + 1) * PANEL_HEIGHT + BOTTOM
        size = (PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM)
        axes = canvas.add_axes((left / width, bottom / height, size[0] / width, size[1] / height))
        _draw(axes, panel, plot_points=size[1] * POINTS, strip=STRIP if figure.has_strip else 0.0)
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Title": figure.title, "Software": "spectune"})
    return file.getvalue()


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
    if symbol == "line":
        axes.plot([left - 0.08, left + 0.08], [0.0, 0.0], color=LIGHT.text, linewidth=1.8)
        return
    axes.plot([left], [0.0], **_style(symbol, LIGHT.text))
    if symbol != "failed":
        axes.plot([left, left], [-0.9, 0.9], color=LIGHT.text, linewidth=1.3, zorder=1)


def _style(symbol: Symbol, colour: str) -> dict[str, Any]:
    plain: dict[str, Any] = {"color": colour, "linestyle": "none", "clip_on": False, "zorder": 2}
    if symbol == "failed":
        return plain | {"marker": "x", "markersize": 5.5, "markeredgewidth": 1.6}
    if symbol == "held-out":
        return plain | {"marker": "D", "markersize": 4.6, "markerfacecolor": LIGHT.background, "markeredgewidth": 1.2}
    return plain | {"marker": "o", "markersize": 4.4, "markeredgewidth": 0.0}


def _draw(axes: Axes, panel: Panel, *, plot_points: float, strip: float) -> None:
    _draw_axes(axes, panel)
    _write_titles(axes, panel, above=1.04 + strip)
    for rule in panel.rules:
        axes.axhline(rule.y, color=LIGHT.faint_text, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.text(1.03, panel.y.place(rule.y), rule.label, va="center", **_small(axes))
    for line in panel.lines:
        colour = LIGHT.shade(line.shade)
        for mark in line.marks:
            _draw_mark(axes, panel, mark, colour)
        for stroke in line.strokes:
            axes.plot(*zip(*stroke, strict=True), color=colour, linewidth=1.7, solid_joinstyle="round", zorder=2)
    _draw_labels(axes, panel, plot_points)


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


def _write_titles(axes: Axes, panel: Panel, above: float) -> None:
    axes.text(0.0, above, panel.y.title, **_small(axes))
    axes.text(1.03, above, panel.label_title, **_small(axes))
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
    axes.plot([mark.x], [mark.y], **_style(mark.kind, colour))


def _draw_labels(axes: Axes, panel: Panel, plot_points: float) -> None:
    for label in end_labels(panel, LABEL_GAP / plot_points):
        x, colour = label.x + 0.025, LIGHT.shade(label.line.shade)
        if label.is_led:
            leader = ([x - 0.01, x + 0.02], [label.end, label.height])
            axes.plot(*leader, transform=axes.transAxes, color=colour, linewidth=0.8, alpha=0.6, clip_on=False)
            x += 0.03
        axes.text(x, label.height, label.line.label, va="center", **_small(axes) | {"weight": "bold", "color": colour})
