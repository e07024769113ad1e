"""The cells of one batch as rows of tokens, one per context, and what lies between them.

The row with the widest span of tokens, and most of them, is the *reference* t0(n): straight lines between its points,
so that its refined steps stay. Every other row tells only how its context differs from it:

    t(c, n) = t0(n) + d(c, n)      d straight in n between a row's own points, straight in c between rows, 0 at the
                                   reference: a context slope that depends on the tokens, and the steps of t0 at every c
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

MOST_BELOW = 2.0  # how far below straight lines along the rows a cost may come to lie; noise could carry it below zero
Row = Mapping[int, float]  # tokens -> milliseconds
Line = list[tuple[int, float]]  # ascending (place, value)


class BatchRows:
    """Costs of one batch; exact at every cell."""

    def __init__(self, rows: Mapping[int, Row]) -> None:
        """Take context -> tokens -> milliseconds, at least one cell."""
        self._rows = {context: dict(row) for context, row in sorted(rows.items())}
        widest = max(self._rows, key=lambda context: (*_breadth(self._rows[context]), -context))
        self.reference = widest
        self._base: Line = sorted(self._rows[widest].items())
        self._offsets = {context: self._offset_line(row) for context, row in self._rows.items()}

    @property
    def contexts(self) -> list[int]:
        """Contexts with a cell, ascending."""
        return list(self._rows)

    @property
    def tokens(self) -> list[int]:
        """Token counts with a cell at some context, ascending."""
        return sorted(set().union(*self._rows.values()))

    def spans(self, context: int) -> bool:
        """Whether a context's row reaches from the fewest tokens of the batch to the most."""
        row, every = self._rows[context], self.tokens
        return min(row) == every[0] and max(row) == every[-1]

    def measured(self, context: int, tokens: int) -> float | None:
        """Return a cell's milliseconds, None where there is no such cell."""
        return self._rows.get(context, {}).get(tokens)

    def covering(self, tokens: int) -> list[int]:
        """Return the contexts whose rows reach around `tokens`, ascending."""
        return [context for context, row in self._rows.items() if min(row) <= tokens <= max(row)]

    def ms(self, context: int, tokens: int) -> float | None:
        """Return the cost of any shape inside, None where no two rows around the context reach the tokens."""
        known = self.measured(context, tokens)
        if known is not None:
            return known
        covering = self.covering(tokens)
        if not covering or not covering[0] <= context <= covering[-1]:
            return None
        apart = straight([(c, straight(sorted(self._rows[c].items()), tokens)) for c in covering], context)
        if not self._base[0][0] <= tokens <= self._base[-1][0]:
            return apart
        offset = straight([(c, straight(self._offsets[c], tokens)) for c in covering], context)
        return max(straight(self._base, tokens) + offset, apart / MOST_BELOW)

    def _offset_line(self, row: Row) -> Line:
        low, high = self._base[0][0], self._base[-1][0]
        points = [(tokens, ms - straight(self._base, tokens)) for tokens, ms in row.items() if low <= tokens <= high]
        return sorted(points) or [(low, 0.0)]


def straight(line: Line, at: int) -> float:
    """Return the value of a broken line, (place, value) ascending; beyond its ends, its end values."""
    places = [place for place, _ in line]
    right = bisect_left(places, at)
    if right == len(line):
        return line[-1][1]
    if right == 0 or places[right] == at:
        return line[right][1]
    (left_place, left), (right_place, value) = line[right - 1], line[right]
    return left + (at - left_place) / (right_place - left_place) * (value - left)


def _breadth(row: Row) -> tuple[int, int]:
    return max(row) - min(row), len(row)
