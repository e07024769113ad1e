"""A panel as SVG for the pages; matplotlib's has no marks that a keyboard reaches, and no colours of a dark page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from markupsafe import Markup

from ..axis import Axis
from ..figure import LineSeries, Mark, Note, Panel, Stroke, Symbol
from ..labels import end_labels
from .page import render
from .theme import shade_class

PLOT_WIDTH = 360.0
LABEL_ROOM, CHARACTER = 58.0, 8.0  # right of the plot: for short labels, and per character of longer ones
TOP = 50.0
STRIP = 22.0  # above the plot, where failures stand
LABEL_GAP = 15.0
LEAD, LONG_LEAD = 6.0, 18.0
REACH, DOT = 9, 3.4
MOST_REPEATS = 60  # drawn of one mark
PageSymbol = Symbol | Literal["padded line", "repeats"]
NOTES = {"above": (0.0, 8.0, "middle"), "above right": (3.0, 5.0, "start"), "middle": (0.0, -4.0, "middle")}
LEFT_NOTE = (-6.0, -4.0, "end")


def charts(panels: Sequence[Panel], name: str, table: str, *, has_strip: bool) -> list[Markup]:
    """Return panels as a page's figures of one width, with ids of the prefix `name`, beside the table of that id."""
    room = max((_label_room(panel) for panel in panels), default=0.0)
    drawings = [_Drawing(panel=panel, width=66.0 + PLOT_WIDTH + room, has_strip=has_strip) for panel in panels]
    return [
        render("chart.html", d=drawing, name=f"{name}-{place}", table=table, DOT=DOT, REACH=REACH)
        for place, drawing in enumerate(drawings)
    ]


def symbols(known: Iterable[tuple[Symbol, str]], panels: Iterable[Panel]) -> Iterator[tuple[PageSymbol, str]]:
    """Yield what each symbol of a figure means, and of what pages alone draw: raw repeats and padded forwards."""
    yield from known
    lines = [line for panel in panels for line in panel.lines]
    if any(len(mark.repeats) > 1 for line in lines for mark in line.marks):
        yield "repeats", "raw repeats"
    if any(line.padded for line in lines):
        yield "padded line", "padded to a larger shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    line: LineSeries
    x: float
    y: float
    leader: str  # the path of the stroke that leads to it; "" without one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """The places of a panel's parts, in units of its picture."""

    panel: Panel
    width: float
    has_strip: bool
    left: float = 66.0
    bottom: float = 284.0
    height: float = 330.0

    @property
    def right(self) -> float:
        return self.width - _label_room(self.panel)

    @property
    def top(self) -> float:
        return TOP + STRIP if self.has_strip else TOP

    @property
    def strip(self) -> float:
        return self.top - STRIP / 2

    @property
    def frame(self) -> str:
        return f"{self.left:g} {self.top:g} {self.right:g} {self.bottom:g}"

    def x(self, value: float, axis: Axis | None = None) -> float:
        return self.left + (axis or self.panel.x).place(value) * (self.right - self.left)

    def y(self, value: float, axis: Axis | None = None) -> float:
        return self.bottom - (axis or self.panel.y).place(value) * (self.bottom - self.top)

    def place(self, mark: Mark) -> tuple[float, float]:
        return self.x(mark.x), self.strip if mark.y is None else self.y(mark.y)

    def path(self, points: Stroke) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)

    def dots(self, x: float, heights: Sequence[float]) -> str:
        return "".join(f"M{self.x(x):.1f} {self.y(each):.1f}h0" for each in heights)

    def repeats(self, mark: Mark) -> list[float]:
        low, high = self.panel.y.low, self.panel.y.high
        return sorted(min(max(each, low), high) for each in mark.repeats)[:: -(-len(mark.repeats) // MOST_REPEATS)]

    @staticmethod
    def data(values: Iterable[Sequence[float]]) -> str:
        return " ".join(f"{each:.6g}" for each in chain.from_iterable(values))

    @staticmethod
    def ends(axis: Axis) -> str:
        return f"{axis.low:.8g} {axis.high:.8g}{' log' if axis.is_log else ''}"

    @staticmethod
    def colour(line: LineSeries) -> str:
        return "shade-accent" if line.shade is None and line.weight > 1.2 else shade_class(line.shade)

    @staticmethod
    def looks(line: LineSeries) -> str:
        weight = " is-bold" if line.weight > 1.2 else " is-thin" if line.weight < 0.8 else ""
        return f"stroke{weight}{' is-dashed' if line.is_dashed else ''}"

    def labels(self) -> Iterator[_Label]:
        wide, high = self.right - self.left, self.bottom - self.top
        lead = LONG_LEAD if self.panel.has_long_labels else LEAD
        for label in end_labels(self.panel, LABEL_GAP / high):
            x, leader = self.left + label.x * wide + 10, ""
            end, y = (self.bottom - share * high for share in (label.end, label.height))
            if label.is_led:
                begin = self.left + label.end_x * wide + 6
                leader = f"M{begin:.1f} {end:.1f}L{x - 4:.1f} {end:.1f}L{x + lead:.1f} {y:.1f}"
                x += lead + 2
            yield _Label(line=label.line, x=x, y=y, leader=leader)

    def notes(self) -> Iterator[tuple[Note, float, float, str]]:
        for note in self.panel.notes:
            aside, above, anchor = NOTES.get(note.side, LEFT_NOTE)
            yield note, self.x(note.x) + aside, self.y(note.y) - above, anchor


def _label_room(panel: Panel) -> float:
    return 16 + LONG_LEAD + CHARACTER * panel.label_length if panel.has_long_labels else LABEL_ROOM
