"""A panel as SVG, its colours left to the page: `color` on paper and on a dark screen, one element per mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from .figure import Figure, Line, Mark, Panel, Side, Stroke, Symbol
from .labels import end_labels
from .palette import DARK, LIGHT

PLOT_WIDTH, HEIGHT = 346, 360
LEFT, TOP, BOTTOM = 50, 46, 316  # edges of the plot
LABEL_ROOM = 64  # to the right of the plot, for short labels
CHARACTER = 6.7  # width of one, of a longer label
STRIP = 22  # height of the band between the heading and the plot where failures stand
LABEL_GAP = 14
LEAD, LONG_LEAD = 5, 18  # how far right a stroke leads to a label that had to move
NOTE_SIDES: Mapping[Side, tuple[float, float, str]] = {  # right of its place, above it, what of the text is there
    "above": (0, 8, "middle"),
    "above right": (3, 5, "start"),
    "middle": (0, -4, "middle"),
    "left": (-6, -4, "end"),
}
REACH = 9  # radius around a mark that still means it
DOT = 3.4  # radius
STROKE = 2.0  # width
DASHES = "5 4"


def width_of(figure: Figure) -> float:
    """Return the width of every panel of a figure, so that the longest labels of any fit beside its plot."""
    return LEFT + PLOT_WIDTH + max(_label_room(panel) for panel in figure.panels)


def panel_svg(panel: Panel, name: str, *, has_strip: bool, width: float) -> str:
    """Return one panel as an SVG element.

    Args:
        panel: what to draw.
        name: a prefix of the ids in it, distinct on a page.
        has_strip: whether to leave room above the plot for marks without a height.
        width: of the panel, from `width_of`; what the labels leave of it is the plot's.
    """
    drawn = _Drawing(panel=panel, top=TOP + STRIP if has_strip else TOP, right=width - _label_room(panel))
    about = f"{panel.y.title} against {panel.x.title}; {len(panel.marks)} marks, listed in the table below"
    place = ' style="grid-column-start:1"' if panel.starts_row else ""
    return "\n".join(
        (
            f'<svg viewBox="0 0 {width:g} {HEIGHT}" role="group" aria-labelledby="{name}-title {name}-desc"{place}>',
            f'<title id="{name}-title">{escape(panel.title)}</title>',
            f'<desc id="{name}-desc">{escape(about)}</desc>',
            *drawn.headings(),
            *drawn.axes(),
            *drawn.rules(),
            *drawn.labels(),
            *(part for line in panel.lines for part in drawn.line(line)),
            *drawn.notes(),
            "</svg>",
        )
    )


def symbol_svg(symbol: Symbol) -> str:
    """Return the small picture of a symbol that a legend shows."""
    parts = {
        "measured": '<path class="whisker" d="M8 1V15"/><circle class="dot" cx="8" cy="8" r="3.4"/>',
        "predicted": '<path class="whisker" d="M8 1V15"/><circle class="dot" cx="8" cy="8" r="3.4"/>',
        "line": '<path class="stroke" d="M1 10 6 9 15 4"/>',
        "dashed line": '<path class="stroke" d="M0 8H16" style="stroke-dasharray:4 3"/>',
        "held-out": f'<path class="whisker" d="M8 1V15"/>{_diamond(8, 8)}',
        "failed": _cross(8, 8),
    }
    return f'<svg class="symbol" viewBox="0 0 16 16" aria-hidden="true">{parts[symbol]}</svg>'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """A panel and where its plot begins and ends; every method yields elements."""

    panel: Panel
    top: float
    right: float

    def x(self, value: float) -> float:
        return LEFT + self.panel.x.place(value) * (self.right - LEFT)

    def y(self, value: float) -> float:
        return BOTTOM - self.panel.y.place(value) * (BOTTOM - self.top)

    def headings(self) -> Iterator[str]:
        panel, middle = self.panel, (LEFT + self.right) / 2
        yield _text("heading", LEFT, 16, panel.title)
        yield _text("axis", LEFT, 35, panel.y.title)
        yield _text("axis", self.right + 10, 35, panel.label_title)
        yield _text("axis", middle, HEIGHT - 6, panel.x.title, anchor="middle")
        if any(mark.y is None for mark in panel.marks):
            yield _text("tick", LEFT - 8, self.top - STRIP / 2 + 4, panel.strip_title, anchor="end")

    def axes(self) -> Iterator[str]:
        for tick in self.panel.y.ticks:
            at = self.y(tick)
            yield f'<path class="rule" d="M{LEFT} {at:.1f}H{self.right:.1f}"/>'
            yield _text("tick", LEFT - 8, at + 4, self.panel.y.label(tick), anchor="end")
        for tick in self.panel.x.ticks:
            at = self.x(tick)
            yield f'<path class="base" d="M{at:.1f} {BOTTOM}v5"/>'
            yield _text("tick", at, BOTTOM + 19, self.panel.x.label(tick), anchor="middle")
        yield f'<path class="base" d="M{LEFT} {BOTTOM}H{self.right:.1f}"/>'

    def rules(self) -> Iterator[str]:
        for rule in self.panel.rules:
            at = self.y(rule.y)
            yield f'<path class="compare" d="M{LEFT} {at:.1f}H{self.right:.1f}"/>'
            yield _text("axis", self.right + 10, at + 4, rule.label)

    def labels(self) -> Iterator[str]:
        for label in end_labels(self.panel, LABEL_GAP / (BOTTOM - self.top)):
            x, lead = LEFT + label.x * (self.right - LEFT) + 10, LONG_LEAD if self.panel.has_long_labels else LEAD
            end, y = (BOTTOM - share * (BOTTOM - self.top) for share in (label.end, label.height))
            yield f'<g class="label" {_colour(label.line)}>'
            if label.is_led:
                from_x = LEFT + label.end_x * (self.right - LEFT) + 6
                yield f'<path class="leader" d="M{from_x:.1f} {end:.1f}L{x - 4:.1f} {end:.1f}L{x + lead:.1f} {y:.1f}"/>'
                x += lead + 2
            yield _text("end", x, y + 4, label.line.label) + "</g>"

    def line(self, line: Line) -> Iterator[str]:
        yield f'<g class="line" {_colour(line)}>'
        strokes = [f'<path class="stroke" d="{self.path(stroke)}"{_look(line)}/>' for stroke in line.strokes]
        marks = [self.mark(mark) for mark in line.marks]
        is_tree = any(mark.kind == "node" for mark in line.marks)
        yield from (self.dot(dot.x, dot.y, dot.size) for dot in line.dots)
        yield from (*strokes, *marks) if is_tree else (*marks, *strokes)  # a node covers the branch that leads to it
        yield "</g>"

    def notes(self) -> Iterator[str]:
        for note in self.panel.notes:
            aside, above, anchor = NOTE_SIDES[note.side]
            kind = "axis note" if note.is_faint else "note"
            yield _text(kind, self.x(note.x) + aside, self.y(note.y) - above, note.text, anchor=anchor)

    def path(self, stroke: Stroke) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in stroke)

    def dot(self, x: float, y: float, size: float) -> str:
        return f'<circle class="dot" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{DOT * size:.3g}"/>'

    def mark(self, mark: Mark) -> str:
        x, y = self.x(mark.x), self.top - STRIP / 2 if mark.y is None else self.y(mark.y)
        parts = f'<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="{REACH}"/>'
        if mark.low is not None and mark.high is not None:
            parts += f'<path class="whisker" d="M{x:.1f} {self.y(mark.low):.1f}V{self.y(mark.high):.1f}"/>'
        if mark.kind == "failed":
            parts += _cross(x, y)
        elif mark.kind == "held-out":
            parts += _diamond(x, y)
        else:
            parts += self.dot(mark.x, self.panel.y.low if mark.y is None else mark.y, mark.size)
        return f'<g class="mark {mark.kind}" tabindex="0" role="img" aria-label="{_attribute(mark.text)}">{parts}</g>'


def _label_room(panel: Panel) -> float:
    return 16 + LONG_LEAD + CHARACTER * panel.label_length if panel.has_long_labels else LABEL_ROOM


def _look(line: Line) -> str:
    """Return what the strokes of a line have beyond the usual."""
    looks = [f"stroke-width:{STROKE * line.weight:.3g}"] if line.weight != 1.0 else []
    looks += [f"stroke-dasharray:{DASHES}"] if line.is_dashed else []
    return f' style="{";".join(looks)}"' if looks else ""


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
