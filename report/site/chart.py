"""A panel as SVG for the pages: no inline style, every value beside its place, so that a script can move it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..axis import Axis
from ..figure import LineSeries, Mark, Panel, Symbol
from ..labels import end_labels
from .markup import Child, Html, joined, tag
from .theme import shade_class

PLOT_WIDTH, HEIGHT = 360.0, 330.0
LEFT, TOP, BOTTOM = 66.0, 50.0, 284.0  # edges of the plot
LABEL_ROOM, CHARACTER = 58.0, 8.0  # right of the plot: for short labels, and per character of longer ones
STRIP = 22.0  # above the plot, where failures stand
LABEL_GAP = 15.0
LEAD, LONG_LEAD = 6.0, 18.0
REACH, DOT = 9.0, 3.4
MOST_REPEATS = 60  # drawn of one mark
PageSymbol = Symbol | Literal["padded line", "repeats"]
NOTES = {"above": (0.0, 8.0, "middle"), "above right": (3.0, 5.0, "start"), "middle": (0.0, -4.0, "middle")}
LEFT_NOTE = (-6.0, -4.0, "end")


def charts(panels: Sequence[Panel], name: str, table: str, *, has_strip: bool) -> list[Html]:
    """Return panels as a page's figures of one width, with ids of the prefix `name`, beside the table of that id."""
    room = max((_label_room(panel) for panel in panels), default=0.0)
    return [
        _chart(panel, f"{name}-{place}", table, LEFT + PLOT_WIDTH + room, has_strip=has_strip)
        for place, panel in enumerate(panels)
    ]


def legend(symbols: Iterable[tuple[PageSymbol, str]]) -> Html:
    """Return what each symbol means."""
    return tag("ul", [tag("li", _symbol(symbol), tag("span", text)) for symbol, text in symbols], class_="legend")


def symbols(known: Iterable[tuple[Symbol, str]], panels: Iterable[Panel]) -> Iterator[tuple[PageSymbol, str]]:
    """Yield what each symbol of a figure means, and of what pages alone draw: raw repeats and padded forwards."""
    yield from known
    lines = [line for panel in panels for line in panel.lines]
    if any(len(mark.repeats) > 1 for line in lines for mark in line.marks):
        yield "repeats", "raw repeats"
    if any(line.padded for line in lines):
        yield "padded line", "padded to a larger shape"


def _chart(panel: Panel, name: str, table: str, width: float, *, has_strip: bool) -> Html:
    top = TOP + STRIP if has_strip else TOP
    drawn = _Drawing(panel=panel, top=top, right=width - _label_room(panel))
    about = f"{panel.y.title} against {panel.x.title}; {len(panel.marks)} marks, every value is in the table beside it"
    picture = tag(
        "svg",
        tag("title", panel.title, id=f"{name}-title"),
        tag("desc", about, id=f"{name}-desc"),
        drawn.headings(),
        drawn.axis_lines(),
        drawn.rules(),
        [drawn.line(line) for line in panel.lines],
        drawn.labels(),
        drawn.notes(),
        viewBox=f"0 0 {width:g} {HEIGHT:g}",
        role="group",
        aria_labelledby=f"{name}-title {name}-desc",
        aria_details=table,
        data_frame=f"{LEFT:g} {top:g} {drawn.right:g} {BOTTOM:g}",
        data_x=_ends(panel.x),
        data_y=_ends(panel.y),
        data_other_x=_ends(panel.other_x),
        data_other_y=_ends(panel.other_y),
    )
    return tag("figure", picture, class_="chart", data_panel=panel.title)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    panel: Panel
    top: float
    right: float

    def x(self, value: float, axis: Axis | None = None) -> float:
        return LEFT + (axis or self.panel.x).place(value) * (self.right - LEFT)

    def y(self, value: float, axis: Axis | None = None) -> float:
        return BOTTOM - (axis or self.panel.y).place(value) * (BOTTOM - self.top)

    def headings(self) -> Iterator[Html]:
        panel = self.panel
        yield _words("heading", LEFT, 16, panel.title)
        yield _words("quiet", LEFT, 37, panel.y.title)
        yield _words("quiet", self.right + 10, 37, panel.label_title)
        yield _words("quiet", (LEFT + self.right) / 2, HEIGHT - 6, panel.x.title, "middle")
        if any(mark.y is None for mark in panel.marks):
            yield _words("quiet", LEFT - 8, self.top - STRIP / 2 + 4, panel.strip_title, "end")

    def axis_lines(self) -> Iterator[Html]:
        panel = self.panel
        for axis, kind in ((panel.y, "y"), (panel.other_y, "other-y")):
            if axis is not None:
                yield tag("g", self._y_ticks(axis), data_ticks=kind, hidden=axis is not panel.y)
        for axis, kind in ((panel.x, "x"), (panel.other_x, "other-x")):
            if axis is not None:
                yield tag("g", self._x_ticks(axis), data_ticks=kind, hidden=axis is not panel.x)
        yield tag("path", class_="base", d=f"M{LEFT:g} {BOTTOM:g}H{self.right:.1f}")

    def rules(self) -> Iterator[Html]:
        for rule in self.panel.rules:
            at = self.y(rule.y)
            yield tag("path", class_="compare", d=f"M{LEFT:g} {at:.1f}H{self.right:.1f}")
            yield _words("quiet", self.right + 10, at + 4, rule.label)

    def line(self, line: LineSeries) -> Html:
        weight = "is-bold" if line.weight > 1.2 else "is-thin" if line.weight < 0.8 else ""
        looks = " ".join(["stroke", *([weight] if weight else []), *(["is-dashed"] if line.is_dashed else [])])
        marks = [self.mark(mark) for mark in line.marks]
        dots = [
            tag("circle", class_="dot", cx=_at(self.x(dot.x)), cy=_at(self.y(dot.y)), r=_at(DOT * dot.size))
            for dot in line.dots
        ]
        strokes = [self.stroke(looks, stroke) for stroke in line.strokes]
        padded = [self.stroke("stroke is-padded", stroke) for stroke in line.padded]
        is_tree = any(mark.kind == "node" for mark in line.marks)
        order: Child = [dots, strokes, marks] if is_tree else [dots, padded, strokes, marks]
        return tag("g", order, class_=f"line {_colour(line)}", data_line=line.label or None)

    def stroke(self, looks: str, points: Sequence[tuple[float, float]]) -> Html:
        path = "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return tag("path", class_=looks, d=path, data_points=" ".join(f"{x:.6g} {y:.6g}" for x, y in points))

    def mark(self, mark: Mark) -> Html:
        x, y = self.x(mark.x), self.top - STRIP / 2 if mark.y is None else self.y(mark.y)
        shape: Child = _cross() if mark.kind == "failed" else _diamond() if mark.kind == "held-out" else _dot(mark.size)
        place = tag(
            "g",
            tag("circle", class_="reach", r=REACH),
            shape,
            transform=f"translate({x:.1f} {y:.1f})",
            data_at=f"{mark.x:.6g}" if mark.y is None else f"{mark.x:.6g} {mark.y:.6g}",
        )
        parts = [tag("title", mark.text), self._repeats(mark), self._whisker(mark), place]
        return tag("g", parts, class_=f"mark {mark.kind}", role="img", aria_label=mark.text)

    def labels(self) -> Iterator[Html]:
        for label in end_labels(self.panel, LABEL_GAP / (BOTTOM - self.top)):
            is_long = self.panel.has_long_labels
            x, lead = LEFT + label.x * (self.right - LEFT) + 10, LONG_LEAD if is_long else LEAD
            end, y = (BOTTOM - share * (BOTTOM - self.top) for share in (label.end, label.height))
            leader = None
            if label.is_led:
                from_x = LEFT + label.end_x * (self.right - LEFT) + 6
                path = f"M{from_x:.1f} {end:.1f}L{x - 4:.1f} {end:.1f}L{x + lead:.1f} {y:.1f}"
                leader, x = tag("path", class_="leader", d=path), x + lead + 2
            words = _words("end", x, y + 4, label.line.label)
            yield tag("g", leader, words, class_=f"label {_colour(label.line)}", data_line=label.line.label)

    def notes(self) -> Iterator[Html]:
        for note in self.panel.notes:
            aside, above, anchor = NOTES.get(note.side, LEFT_NOTE)
            kind = "quiet" if note.is_faint else "note-text"
            yield _words(kind, self.x(note.x) + aside, self.y(note.y) - above, note.text, anchor)

    def _y_ticks(self, axis: Axis) -> Iterator[Html]:
        for tick in axis.ticks:
            at = self.y(tick, axis)
            yield tag("path", class_="grid-line", d=f"M{LEFT:g} {at:.1f}H{self.right:.1f}")
            yield _words("quiet", LEFT - 8, at + 4, axis.label(tick), "end")

    def _x_ticks(self, axis: Axis) -> Iterator[Html]:
        for tick in axis.ticks:
            at = self.x(tick, axis)
            yield tag("path", class_="base", d=f"M{at:.1f} {BOTTOM:g}v5")
            yield _words("quiet", at, BOTTOM + 20, axis.label(tick), "middle")

    def _whisker(self, mark: Mark) -> Html | None:
        if mark.low is None or mark.high is None:
            return None
        return self.stroke("whisker", ((mark.x, mark.low), (mark.x, mark.high)))

    def _repeats(self, mark: Mark) -> Html | None:
        if len(mark.repeats) < 2:
            return None
        low, high = self.panel.y.low, self.panel.y.high
        heights = [min(max(each, low), high) for each in sorted(mark.repeats)]
        step = -(-len(heights) // MOST_REPEATS)
        chosen = heights[::step]
        path = "".join(f"M{self.x(mark.x):.1f} {self.y(each):.1f}h0" for each in chosen)
        values = " ".join(f"{each:.6g}" for each in chosen)
        return tag("path", class_="repeats", d=path, data_repeats=f"{mark.x:.6g} {values}")


def _label_room(panel: Panel) -> float:
    return 16 + LONG_LEAD + CHARACTER * panel.label_length if panel.has_long_labels else LABEL_ROOM


def _colour(line: LineSeries) -> str:
    return "shade-accent" if line.shade is None and line.weight > 1.2 else shade_class(line.shade)


def _ends(axis: Axis | None) -> str | None:
    return None if axis is None else f"{axis.low:.8g} {axis.high:.8g}{' log' if axis.is_log else ''}"


def _words(kind: str, x: float, y: float, text: str, anchor: str = "start") -> Html:
    """Return a text hidden from screen readers, which have the title, the marks and the table."""
    if not text:
        return joined()
    return tag("text", text, class_=kind, x=_at(x), y=_at(y), text_anchor=anchor, aria_hidden="true")


def _at(value: float) -> str:
    return f"{value:.1f}"


def _dot(size: float) -> Html:
    return tag("circle", class_="dot", r=_at(DOT * size))


def _diamond() -> Html:
    return tag("path", class_="hollow", d="M0-4.4l4.4 4.4-4.4 4.4-4.4-4.4z")


def _cross() -> Html:
    return tag("path", class_="cross", d="M-3.6-3.6l7.2 7.2m0-7.2l-7.2 7.2")


def _symbol(symbol: PageSymbol) -> Html:
    middle = "translate(11 8)"
    whisker = tag("path", class_="whisker", d="M11 1V15")
    parts: dict[PageSymbol, Child] = {
        "measured": [whisker, tag("g", _dot(1.0), transform=middle)],
        "predicted": [whisker, tag("g", _dot(1.0), transform=middle)],
        "line": tag("path", class_="stroke", d="M1 10 8 9 21 4"),
        "dashed line": tag("path", class_="stroke is-dashed", d="M0 8H22"),
        "padded line": tag("path", class_="stroke is-padded", d="M0 8H22"),
        "repeats": tag("path", class_="repeats", d="M11 2h0M11 5h0M11 8h0M11 13h0"),
        "held-out": [whisker, tag("g", _diamond(), transform=middle)],
        "failed": tag("g", _cross(), transform=middle),
    }
    return tag("svg", parts[symbol], viewBox="0 0 22 16", aria_hidden="true")
