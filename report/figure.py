"""A picture before it is drawn: the places of things and the words on them, in no format yet."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from ..errors import MeasurementError
from .axis import Axis

MOST_COLUMNS = 3
MOST_WIDE_COLUMNS = 2
WIDE_FROM = 12  # characters of a label; such labels ask for wider panels
NUMBER = "0123456789.,%-e\N{MINUS SIGN}\N{EN DASH}"  # characters of numbers
Kind = Literal["measured", "held-out", "failed", "predicted", "node"]
Symbol = Literal["measured", "held-out", "failed", "predicted", "line", "dashed line"]
Side = Literal["above", "above right", "middle", "left"]
Stroke = tuple[tuple[float, float], ...]  # (x, y) of its points, in values of the axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One value; what has no height lies in a strip above the plot."""

    kind: Kind
    x: float
    y: float | None
    text: str  # lines of what is known of it
    low: float | None = None  # ends of its whisker, where its spread is known
    high: float | None = None
    size: float = 1.0  # of its dot, as a multiple of the usual radius
    repeats: tuple[float, ...] = ()  # heights it was made of, as they were timed; pages show them faintly

    def __post_init__(self) -> None:
        if self.kind == "failed" and self.y is not None:
            raise MeasurementError(f"a failed mark has the height {self.y}; what failed has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A dot without a value: one of many that show an amount."""

    x: float
    y: float
    size: float = 1.0  # as a multiple of the usual radius


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSeries:
    """Marks that belong together and the strokes through them; drawn in one colour."""

    label: str  # stands at the right end of the last stroke
    shade: float | None  # 0 first of a family of lines .. 1 last; None is drawn like text
    marks: tuple[Mark, ...]
    strokes: tuple[Stroke, ...] = ()
    weight: float = 1.0  # of its strokes, as a multiple of the usual width
    is_dashed: bool = False
    dots: tuple[Dot, ...] = ()
    padded: tuple[Stroke, ...] = ()  # beside the strokes: what is paid where a forward runs padded to a larger shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A text at a place of the plot: its middle there or a little above it, or all of it above right or left of it."""

    x: float
    y: float
    text: str
    side: Side = "above"
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLine:
    """A height that the marks are to be compared with."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[LineSeries, ...]
    label_title: str = ""  # what the labels of the lines are numbers of
    rules: tuple[ReferenceLine, ...] = ()
    strip_title: str = ""  # why the marks above the plot have no height
    notes: tuple[Note, ...] = ()
    starts_row: bool = False  # whether it stands below the panels before it, not beside them
    other_x: Axis | None = None  # the same values spaced the other way, where a reader may choose
    other_y: Axis | None = None

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Every mark of every line."""
        return tuple(mark for line in self.lines for mark in line.marks)

    @property
    def has_long_labels(self) -> bool:
        """Whether the labels right of the plot need more room than numbers do; then all are in one column."""
        return self.label_length >= WIDE_FROM

    @property
    def label_length(self) -> int:
        """Characters of the longest label to the right of the plot."""
        return max((len(text) for text in (*(line.label for line in self.lines), self.label_title)), default=0)


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

    @property
    def words(self) -> tuple[bool, ...]:
        """Whether each column holds words instead of numbers."""
        return tuple(any(row[place].strip(NUMBER) for row in self.rows) for place in range(len(self.columns)))

    @property
    def csv_address(self) -> str:
        """The values as a CSV file, in the address itself; numbers are without thousands separators."""
        text = io.StringIO()
        rows = [[cell if cell.strip(NUMBER) else cell.replace(",", "") for cell in row] for row in self.rows]
        csv.writer(text).writerows([self.columns, *rows])
        return f"data:text/csv;charset=utf-8,{quote(text.getvalue())}"


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
        """How many panels are side by side where there is room: rows as full as can be."""
        most = MOST_WIDE_COLUMNS if any(panel.has_long_labels for panel in self.panels) else MOST_COLUMNS
        return 2 if len(self.panels) in (2, 4) else min(len(self.panels), most)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each panel."""
        found: list[tuple[int, int]] = []
        row, column = 0, 0
        for panel in self.panels:
            if column == self.columns or (panel.starts_row and column):
                row, column = row + 1, 0
            found.append((row, column))
            column += 1
        return tuple(found)

    @property
    def has_strip(self) -> bool:
        """Whether some mark has no height; then every panel leaves room above its plot, so that all plots agree."""
        return any(mark.y is None for panel in self.panels for mark in panel.marks)
