"""The places of labels at the ends of lines, so that none covers another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .figure import LineSeries, Panel

LEAST_MOVE = 0.015  # of a plot's height: a label nearer to the end of its line is not led to
SAME_COLUMN = 0.1  # of a plot's width: labels of lines that end so near to each other could meet


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLabel:
    """Where a line and its label end; shares of the plot's width and height, from the lower left."""

    line: LineSeries
    x: float  # of the label
    end_x: float
    end: float
    height: float
    is_led: bool  # whether a stroke should lead to the label: some label of its column had to move


def end_labels(panel: Panel, gap: float) -> Iterator[EndLabel]:
    """Yield the label of every line that has one, at its right end, moved where it would cover another.

    Short labels stay near their ends; long ones share a column behind the last. `gap` is a share of the height.
    """
    reach = 1.0 if panel.has_long_labels else SAME_COLUMN
    column: list[tuple[float, float, LineSeries]] = []
    for end in sorted(_ends(panel), key=lambda end: end[:2]):
        if column and end[0] > column[0][0] + reach:
            yield from _labelled(column, gap)
            column = []
        column.append(end)
    yield from _labelled(column, gap)


def _ends(panel: Panel) -> Iterator[tuple[float, float, LineSeries]]:
    """Yield where each line with a label ends, as shares of the plot's width and height, and the line."""
    for line in panel.lines:
        if line.label and line.strokes:
            x, y = line.strokes[-1][-1]
            yield panel.x.place(x), panel.y.place(y), line


def _labelled(column: Sequence[tuple[float, float, LineSeries]], gap: float) -> Iterator[EndLabel]:
    x = max((x for x, _, _ in column), default=0.0)
    heights = spread_labels([end for _, end, _ in column], gap, 0.0, 1.0)
    has_moved = any(abs(height - end) > LEAST_MOVE for (_, end, _), height in zip(column, heights, strict=True))
    is_led = has_moved or any(end_x < x - SAME_COLUMN for end_x, _, _ in column)
    for (end_x, end, line), height in zip(column, heights, strict=True):
        yield EndLabel(line=line, x=x, end_x=end_x, end=end, height=height, is_led=is_led)


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least `gap` apart, as near to the wanted ones as their order allows.

    Neighbours that are too near form a block at the mean of their wanted places, O(n^2) at most. Where all do not fit
    below `high`, they reach beyond it.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _meet(blocks[-2], blocks[-1], wanted, gap):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = [0.0] * len(wanted)
    for block in blocks:
        for rank, index in enumerate(block):
            places[index] = _first(block, wanted, gap) + rank * gap
    return _inside(places, order, gap, low, high)


def _meet(lower: Sequence[int], upper: Sequence[int], wanted: Sequence[float], gap: float) -> bool:
    return _first(upper, wanted, gap) < _first(lower, wanted, gap) + gap * len(lower)


def _first(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    mean = sum(wanted[index] for index in block) / len(block)
    return mean - gap * (len(block) - 1) / 2


def _inside(places: list[float], order: Sequence[int], gap: float, low: float, high: float) -> list[float]:
    limit = high
    for index in reversed(order):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    limit = low
    for index in order:
        places[index] = max(places[index], limit)
        limit = places[index] + gap
    return places
