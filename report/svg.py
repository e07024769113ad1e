"""A panel as SVG, its colours left to the page: `color` on paper and on a dark screen, one element per mark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from .figure import Line, Mark, Panel, Stroke, Symbol
from .labels import end_labels
from .palette import DARK, LIGHT

WIDTH, HEIGHT = 460, 360
LEFT, RIGHT, TOP, BOTTOM = 50, 396, 46, 316  # edges of the plot
STRIP = 22  # height of the band between the heading and the plot where failures stand
LABEL_GAP = 14
REACH = 9  # radius around a mark that still means it


def panel_svg(panel: Panel, name: str, *, has_strip: bool) -> str:
    """Return one panel as an SVG element.

    Args:
        panel: what to draw.
        name: a prefix of the ids in it, distinct on a page.
        has_strip: whether to leave room above the plot for marks without a height.
    """
    drawn = _Drawing(panel=panel, top=TOP + STRIP if has_strip else TOP)
    about = f"{panel.y.title} against {panel.x.title}; {len(panel.marks)} marks, listed in the table below"
    return "\n".join(
        (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-labelledby="{name}-title {name}-desc">',
            f'<title id="{name}-title">{escape(panel.title)}</title>',
            f'<desc id="{name}-desc">{escape(about)}</desc>',
            *drawn.headings(),
            *drawn.axes(),
            *drawn.rules(),
            *drawn.labels(),
            *(part for line in panel.lines for part in drawn.line(line)),
            "</svg>",
        )
    )


def symbol_svg(symbol: Symbol) -> str:
    """Return the small picture of a symbol that a legend shows."""
    parts = {
        "measured": '<path class="whisker" d="M8 1V15"/><circle class="dot" cx="8" cy="8" r="3.4"/>',
        "line": '<path class="stroke" d="M1 10 6 9 15 4"/>',
        "held-out": f'<path class="whisker" d="M8 1V15"/>{_diamond(8, 8)}',
        "failed": _cross(8, 8),
    }
    return f'<svg class="symbol" viewBox="0 0 16 16" aria-hidden="true">{parts[symbol]}</svg>'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """A panel and where its plot begins; every method yields elements."""

    panel: Panel
    top: float

    def x(self, value: float) -> float:
        return LEFT + self.panel.x.place(value) * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        return BOTTOM - self.panel.y.place(value) * (BOTTOM - self.top)

    def headings(self) -> Iterator[str]:
        panel, middle = self.panel, (LEFT + RIGHT) / 2
        yield _text("heading", LEFT, 16, panel.title)
        yield _text("axis", LEFT, 35, panel.y.title)
        yield _text("axis", RIGHT + 10, 35, panel.label_title)
        yield _text("axis", middle, HEIGHT - 6, panel.x.title, anchor="middle")
        if any(mark.y is None for mark in panel.marks):
            yield _text("tick", LEFT - 8, self.top - STRIP / 2 + 4, panel.strip_title, anchor="end")

    def axes(self) -> Iterator[str]:
        for tick in self.panel.y.ticks:
            at = self.y(tick)
            yield f'<path class="rule" d="M{LEFT} {at:.1f}H{RIGHT}"/>'
            yield _text("tick", LEFT - 8, at + 4, self.panel.y.label(tick), anchor="end")
        for tick in self.panel.x.ticks:
            at = self.x(tick)
            yield f'<path class="base" d="M{at:.1f} {BOTTOM}v5"/>'
            yield _text("tick", at, BOTTOM + 19, self.panel.x.label(tick), anchor="middle")
        yield f'<path class="base" d="M{LEFT} {BOTTOM}H{RIGHT}"/>'

    def rules(self) -> Iterator[str]:
        for rule in self.panel.rules:
            at = self.y(rule.y)
            yield f'<path class="compare" d="M{LEFT} {at:.1f}H{RIGHT}"/>'
            yield _text("axis", RIGHT + 10, at + 4, rule.label)

    def labels(self) -> Iterator[str]:
        for label in end_labels(self.panel, LABEL_GAP / (BOTTOM - self.top)):
            x = LEFT + label.x * (RIGHT - LEFT) + 10
            end, y = (BOTTOM - share * (BOTTOM - self.top) for share in (label.end, label.height))
            yield f'<g class="label" {_colour(label.line)}>'
            if label.is_led:
                yield f'<path class="leader" d="M{x - 4:.1f} {end:.1f}L{x + 5:.1f} {y:.1f}"/>'
                x += 7
            yield _text("end", x, y + 4, label.line.label) + "</g>"

    def line(self, line: Line) -> Iterator[str]:
        yield f'<g class="line" {_colour(line)}>'
        yield from (self.mark(mark) for mark in line.marks)
        yield from (f'<path class="stroke" d="{self.path(stroke)}"/>' for stroke in line.strokes)
        yield "</g>"

    def path(self, stroke: Stroke) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in stroke)

    def mark(self, mark: Mark) -> str:
        x, y = self.x(mark.x), self.top - STRIP / 2 if mark.y is None else self.y(mark.y)
        parts = f'<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="{REACH}"/>'
        if mark.low is not None and mark.high is not None:
            parts += f'<path class="whisker" d="M{x:.1f} {self.y(mark.low):.1f}V{self.y(mark.high):.1f}"/>'
        if mark.kind == "measured":
            parts += f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
        else:
            parts += _cross(x, y) if mark.kind == "failed" else _diamond(x, y)
        return f'<g class="mark {mark.kind}" tabindex="0" role="img" aria-label="{_attribute(mark.text)}">{parts}</g>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a text; readers of the page hear it from the title, the marks and the table instead."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place} aria-hidden="true">{escape(text)}</text>' if text else ""


def _colour(line: Line) -> str:
    return f'style="--paper:{LIGHT.shade(line.shade)};--screen:{DARK.shade(line.shade)}"'


def _diamond(x: float, y: float) -> str:
    return f'<path class="hollow" d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4-4.4 4.4-4.4-4.4z"/>'


def _cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x - 3.6:.1f} {y - 3.6:.1f}l7.2 7.2m0-7.2l-7.2 7.2"/>'


def _attribute(text: str) -> str:
    return escape(text, quote=True).replace("\n", "&#10;")
