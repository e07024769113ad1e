"""What a round could time in one batch of one surface, and what each would be worth.

A surface is wrong between its points, by their distance from a straight line, and at its points, by their noise. Both
are estimated from what was timed so far, as relative errors:

    between a and b    min(jump / 2, misfit), at least jump / 6      misfit: how far a and b lie from the line through
                                                                     their neighbours; large beside an edge
    at a point         1.2533 noise / sqrt(calls)                    the standard error of a median

Halving the interval with the largest error per millisecond, again and again, walks down to every tile edge. The jump's
share is the doubt that a straight row of points hides a staircase.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .domain import Domain, Shape, doublings
from .records.rows import BatchRows, straight
from .tally import SurfaceCell, Tally


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

    def offset(self, cell: SurfaceCell) -> float:
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


def _rows_of(cells: Iterable[SurfaceCell]) -> dict[int, list[tuple[int, SurfaceCell]]]:
    rows: dict[int, list[tuple[int, SurfaceCell]]] = {}
    for cell in cells:
        rows.setdefault(cell.shape[1], []).append((cell.shape[2], cell))
    return {context: sorted(row, key=lambda place: place[0]) for context, row in sorted(rows.items())}


CALLS_OF_A_NEW_CELL = 3  # timed before its neighbours are trusted
EDGE_DOUBT = 1 / 6  # share of a jump that a straight row of points may hide
NOISE_OF_A_MISFIT = 2.5  # what noise alone hardly ever makes of the larger of two misfits, over the noise of both ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Something a round could time, and what that would be worth."""

    shape: Shape
    error: float  # relative error removed there
    share: float  # of all shapes that the error is made at
    call_ms: float  # what one call is expected to take
    calls: int  # needed for it
    beside: tuple[Shape, ...] = ()  # shapes without which this one tells nothing


def options_of(part: Slice) -> Iterator[Option]:
    """Yield another call of every point, the middle of every gap, and a context between two."""
    yield from _points(part)
    yield from _gaps(part)
    yield from _rows(part)
    yield from _contexts(part)


def _points(part: Slice) -> Iterator[Option]:
    """Yield another call of every point: its noise counts for half of both gaps beside it."""
    for context, row in part.rows.items():
        reach = part.reach(context)
        places = [tokens for tokens, _ in row]
        for (_, cell), share in zip(row, _half_gaps(places, part.tokens), strict=True):
            error = part.tally.error(cell)
            if error > part.enough:
                removed = reach * (error - part.tally.error(cell, more=1))
                yield Option(shape=cell.shape, error=removed, share=share, call_ms=cell.ms, calls=1)


def _gaps(part: Slice) -> Iterator[Option]:
    row = part.rows.get(part.reference, [])
    values = [math.log(cell.ms) for _, cell in row]
    errors = interval_errors([tokens for tokens, _ in row], values)
    for (left, right), error in zip(pairwise(row), errors, strict=True):
        yield from _middle(part, left, right, error)


def _middle(
    part: Slice, left: tuple[int, SurfaceCell], right: tuple[int, SurfaceCell], error: float
) -> Iterator[Option]:
    inside = range(left[0] + 1, right[0])
    middle = part.free(part.reference, inside)
    if middle is not None:
        share = len(inside) / part.tokens
        removed = _beyond_noise(part, error, (left[1], right[1]))
        shape = (part.batch, part.reference, middle)
        yield Option(shape=shape, error=removed, share=share, call_ms=right[1].ms, calls=CALLS_OF_A_NEW_CELL)


def _rows(part: Slice) -> Iterator[Option]:
    """Yield, at every other context, a point whose difference from the reference is not known well."""
    known = [tokens for tokens, _ in part.rows.get(part.reference, [])]
    for context, row in part.rows.items():
        if context == part.reference:
            continue
        errors = interval_errors([tokens for tokens, _ in row], [part.offset(cell) for _, cell in row])
        for (left, right), error in zip(pairwise(row), errors, strict=True):
            inside = [tokens for tokens in known if left[0] < tokens < right[0]]
            middle = part.free(context, inside)
            if middle is not None:
                share = (right[0] - left[0] - 1) / part.tokens
                removed = part.reach(context) * _beyond_noise(part, error, (left[1], right[1]))
                shape = (part.batch, context, middle)
                yield Option(shape=shape, error=removed, share=share, call_ms=right[1].ms, calls=CALLS_OF_A_NEW_CELL)


def _contexts(part: Slice) -> Iterator[Option]:
    """Yield a context between two measured ones, where the change along contexts is not known to be straight."""
    tokens = part.middle_tokens
    line = [(context, cell) for context, row in part.rows.items() for n, cell in row if n == tokens]
    line.sort(key=lambda place: place[0])
    errors = interval_errors([context for context, _ in line], [part.offset(cell) for _, cell in line])
    span = line[-1][0] - line[0][0] if line else 0
    for (left, right), error in zip(pairwise(line), errors, strict=True):
        middle = (left[0] + right[0]) // 2
        if right[0] - left[0] >= max(32, span / 4) and part.free(middle, [tokens]) is not None:
            share = (right[0] - left[0]) / span
            removed = _beyond_noise(part, error, (left[1], right[1]))
            shape = (part.batch, middle, tokens)
            ends = [(part.batch, middle, n) for n in part.end_tokens if n != tokens]
            calls = CALLS_OF_A_NEW_CELL * (1 + len(ends))
            beside = tuple(ends)
            yield Option(shape=shape, error=removed, share=share, call_ms=right[1].ms, calls=calls, beside=beside)


def interval_errors(places: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return how wrong a straight line may be inside each gap of ascending places: (places - 1,)."""
    misfits = [math.inf] * len(places)
    for at in range(1, len(places) - 1):
        share = (places[at] - places[at - 1]) / (places[at + 1] - places[at - 1])
        misfits[at] = abs(values[at] - values[at - 1] - share * (values[at + 1] - values[at - 1]))
    errors = []
    for at in range(len(places) - 1):
        jump = abs(values[at + 1] - values[at])
        told = [misfit for misfit in misfits[at : at + 2] if math.isfinite(misfit)]
        errors.append(max(min(jump / 2, max(told, default=math.inf)), EDGE_DOUBT * jump))
    return errors


def _beyond_noise(part: Slice, error: float, ends: Iterable[SurfaceCell]) -> float:
    """Return the part of an error that noise does not explain, and a new point would remove."""
    noise = NOISE_OF_A_MISFIT * math.hypot(*(part.tally.error(end) for end in ends))
    real = math.sqrt(max(0.0, error * error - noise * noise))
    return real if real > part.enough else 0.0


def _half_gaps(places: Sequence[int], whole: int) -> list[float]:
    edges = [places[0], *((left + right) / 2 for left, right in pairwise(places)), places[-1]]
    return [(high - low + (1 if len(places) == 1 else 0)) / whole for low, high in pairwise(edges)]
