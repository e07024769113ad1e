"""A picture before it is drawn: what stands where and what is said about it, in no format yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import MeasurementError
from .axis import Axis

MOST_COLUMNS = 3
Kind = Literal["measured", "held-out", "failed"]
Symbol = Literal["measured", "held-out", "failed", "line"]
Stroke = tuple[tuple[float, float], ...]  # (x, y) of its points, in values of the axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One measured value; what has no height stands in a strip above the plot."""

    kind: Kind
    x: float
    y: float | None
    text: str  # lines of what is known of it
    low: float | None = None  # ends of its whisker, where its spread is known
    high: float | None = None

    def __post_init__(self) -> None:
        if self.kind == "failed" and self.y is not None:
            raise MeasurementError(f"a failed mark has the height {self.y}; what failed has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Marks that belong together and the strokes through them; drawn in one colour."""

    label: str  # stands at the right end of the last stroke
    shade: float | None  # 0 first of a family of lines .. 1 last; None is drawn like text
    marks: tuple[Mark, ...]
    strokes: tuple[Stroke, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A height that the marks are to be compared with."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    label_title: str = ""  # what the labels of the lines are numbers of
    rules: tuple[Rule, ...] = ()
    strip_title: str = ""  # why the marks above the plot have no height

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Every mark of every line."""
        return tuple(mark for line in self.lines for mark in line.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The same values as text; every row is as long as the columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def filled(self) -> Grid:
        """Return the grid without the columns in which no row has anything."""
        kept = [place for place in range(len(self.columns)) if any(row[place] for row in self.rows)]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return Grid(columns=tuple(self.columns[place] for place in kept), rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels with a title, what has to be known to read them, and their values as a table."""

    title: str
    facts: tuple[str, ...]  # lines below the title
    panels: tuple[Panel, ...]
    legend: tuple[tuple[Symbol, str], ...]  # what each symbol means
    grid: Grid

    def __post_init__(self) -> None:
        if not self.panels:
            raise MeasurementError(f"figure {self.title!r} has no panel; give it something to show")

    @property
    def columns(self) -> int:
        """How many panels stand side by side where there is room: rows as full as can be."""
        return 2 if len(self.panels) in (2, 4) else min(len(self.panels), MOST_COLUMNS)

    @property
    def has_strip(self) -> bool:
        """Whether some mark has no height; then every panel leaves room above its plot, so that all plots agree."""
        return any(mark.y is None for panel in self.panels for mark in panel.marks)
