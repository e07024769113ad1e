"""One batch of one surface as a session knows it: rows of tokens, one per context."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .domain import Domain, Shape, doublings
from .records.rows import BatchRows, straight
from .tally import Cell, Tally


class Slice:
    """The timed cells of one surface at one batch; held-out cells and failures are not among the rows."""

    def __init__(self, tally: Tally, surface: int, batch: int, domain: Domain, enough: float) -> None:
        self.tally, self.surface, self.batch, self.domain = tally, surface, batch, domain
        self.enough = enough  # relative error at which nothing more is done
        self.reference = domain.reference_context
        self.tokens = domain.most(batch) - domain.least_tokens + 1
        doubling = doublings(domain.least_tokens, domain.most(batch))
        self.middle_tokens, self.end_tokens = doubling[len(doubling) // 2], (doubling[0], doubling[-1])
        cells = [cell for cell in tally.of_surface(surface) if cell.shape[0] == batch]
        self._taken = {cell.shape for cell in cells}
        self._failed = [cell.shape for cell in cells if cell.failure]
        self.rows = _rows_of(cell for cell in cells if cell.purpose != "held-out" and not math.isnan(cell.ms))

    def may_run(self, shape: Shape) -> bool:
        """Whether no smaller shape is known to fail."""
        _, context, tokens = shape
        return not any(failed[1] <= context and failed[2] <= tokens for failed in self._failed)

    def free(self, context: int, tokens: Iterable[int]) -> int | None:
        """Return the most central of some token counts that is not yet a cell at a context."""
        free = [n for n in tokens if (self.batch, context, n) not in self._taken]
        return free[len(free) // 2] if free else None

    def reach(self, context: int) -> float:
        """Return the share of contexts whose cost a row decides: all for the reference, half its gaps for another."""
        contexts = sorted(self.rows)
        span = contexts[-1] - contexts[0]
        if context == self.reference or not span:
            return 1.0
        at = contexts.index(context)
        low, high = contexts[max(at - 1, 0)], contexts[min(at + 1, len(contexts) - 1)]
        return (high - low) / 2 / span

    def offset(self, cell: Cell) -> float:
        """Return the logarithm of a cell's cost over the reference row's at its tokens, straight between points."""
        row = [(n, known.ms) for n, known in self.rows.get(self.reference, [])]
        tokens = cell.shape[2]
        if not row or not row[0][0] <= tokens <= row[-1][0]:
            return 0.0
        return math.log(cell.ms / straight(row, tokens))

    def costs(self) -> BatchRows | None:
        """Return what is known of the slice's costs so far, None where nothing is."""
        rows = {context: {tokens: cell.ms for tokens, cell in row} for context, row in self.rows.items()}
        return BatchRows(rows) if rows else None


def _rows_of(cells: Iterable[Cell]) -> dict[int, list[tuple[int, Cell]]]:
    rows: dict[int, list[tuple[int, Cell]]] = {}
    for cell in cells:
        rows.setdefault(cell.shape[1], []).append((cell.shape[2], cell))
    return {context: sorted(row, key=lambda place: place[0]) for context, row in sorted(rows.items())}
