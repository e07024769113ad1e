"""Which shapes to time next: where the surface is likely to be wrong, per millisecond that finding out costs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .domain import Domain, Shape, doublings
from .options import CALLS_OF_A_NEW_CELL, Option, Slice, options_of
from .protocols import CellValue
from .records.pooling import LONG_MS
from .records.rows import BatchRows
from .tally import SurfaceCell, Tally

HELD_OUT_CALLS = 9  # timed per held-out cell, spread over the session
HELD_OUT_LONG_CALLS = 5  # likewise where a call is long
DUE_SHARE = 0.4  # of a round's time that held-out cells may take: they judge a surface and improve nothing
FIRST_VISIT = 2.0  # price of a cell's first visit, which warms it up, over that of another
DECISIVE = 1.0  # share of all shapes that one counts for where the decision hangs on it
MATTERS = 0.15  # least worth of a cell that a decision may hang on
CALLS_OF_OTHERS = 2  # that a new cell gets at first which matters less
LAST_NEW = 0.9  # share of the budget behind which no new cell is begun: one call of a cell tells less than a gap does
PATIENCE = 4  # calls at disturbed moments, per undisturbed one wanted, before they are taken as they are
Worth = Callable[[int, Shape], float]  # of a surface by its number, what a shape is worth to the decision, in [0, 1]
VisitMs = Callable[[int, float], float]  # what a visit takes, of a surface by its number, from what the call takes


class Design(Protocol):
    """Chooses the cells of a round."""

    def begin(self, tally: Tally, rng: random.Random) -> None:
        """Enter the cells every session has: sentinels, held-out cells, the first points of each surface."""
        ...

    def choose(self, tally: Tally, seconds: float, spent_share: float, visit_ms: VisitMs) -> list[SurfaceCell]:
        """Return the cells to time in a round of about `seconds`, each at most once; none: all is known well enough."""
        ...


class AdaptiveDesign:
    """Coarse first, then wherever error, decision and price say."""

    def __init__(
        self,
        domains: Sequence[Domain],
        *,
        held_out: int = 30,
        value: CellValue | None = None,
        enough: float = 0.003,
    ) -> None:
        """Take one domain per surface.

        `held_out` random shapes, shared out evenly, judge the surfaces. `value` None makes all shapes worth the same. A
        point or gap of at most the relative error `enough` is left alone.
        """
        self._domains, self._held_out, self._value, self._enough = tuple(domains), held_out, value, enough

    def begin(self, tally: Tally, rng: random.Random) -> None:
        """Enter the first surface's sentinels, which tell the moment for all, held-out cells and coarse points."""
        for surface, domain in enumerate(self._domains):
            for shape in sentinels(domain) if surface == 0 else ():
                tally.cell(surface, shape, "sentinel")
            for shape in domain.coarse():
                tally.cell(surface, shape)
            for shape in domain.draw(self._share_held_out(surface), rng):
                tally.cell(surface, shape, "held-out")

    def choose(self, tally: Tally, seconds: float, spent_share: float, visit_ms: VisitMs) -> list[SurfaceCell]:
        """Return cells never timed, due held-out ones, those timed too rarely, and what gains most per millisecond."""
        chosen: list[SurfaceCell] = []
        left_ms = 1000.0 * seconds
        worth = self._worth(tally)
        too_few = self._too_few(tally, worth)
        for cells, share in ((_never_timed(tally), 1.0), (self._due(tally, spent_share), DUE_SHARE), (too_few, 1.0)):
            limit_ms = share * left_ms
            for cell in cells:
                price = visit_ms(cell.surface, _call_ms(tally, cell)) * (1.0 if cell.visits else FIRST_VISIT)
                if limit_ms < price and chosen:
                    break
                chosen.append(cell)
                limit_ms, left_ms = limit_ms - price, left_ms - price
        if left_ms <= 0.0 and chosen:
            return chosen
        taken = {cell.number for cell in chosen}
        options = list(self._best_first(tally, visit_ms, worth))
        if not options and not chosen:
            return self._due(tally, 1.0)
        for surface, option in options:
            price = visit_ms(surface, option.call_ms)
            is_known = tally.knows(surface, option.shape)
            if left_ms < price and chosen:
                break
            if is_known and tally.cell(surface, option.shape).number in taken:
                continue
            if not is_known and spent_share > LAST_NEW:
                continue
            for shape in (option.shape, *option.beside):
                chosen.append(tally.cell(surface, shape))
                left_ms -= price
        return chosen

    def _share_held_out(self, surface: int) -> int:
        count, surfaces = self._held_out, len(self._domains)
        return count // surfaces + (surface < count % surfaces)

    def _due(self, tally: Tally, spent_share: float) -> list[SurfaceCell]:
        held_out = [cell for cell in tally.cells if cell.purpose == "held-out" and cell.failure is None]
        call_ms = {cell.number: _call_ms(tally, cell) for cell in held_out}
        due = []
        for cell in held_out:
            calls = HELD_OUT_LONG_CALLS if call_ms[cell.number] >= LONG_MS else HELD_OUT_CALLS
            wanted = math.ceil(calls * min(1.0, spent_share + 0.05))
            if cell.clean < wanted and cell.timed < PATIENCE * wanted:
                due.append(cell)
        return sorted(due, key=lambda cell: (cell.clean, call_ms[cell.number]))

    def _too_few(self, tally: Tally, worth: Worth) -> Iterator[SurfaceCell]:
        rated = ((c.clean, -worth(c.surface, c.shape), c.number) for c in tally.cells if c.purpose != "held-out")
        for clean, against, number in sorted(rated):
            cell = tally.cells[number]
            matters = self._value is None or -against >= MATTERS
            is_tried = 0 < cell.timed < PATIENCE * CALLS_OF_A_NEW_CELL
            if clean < (CALLS_OF_A_NEW_CELL if matters else CALLS_OF_OTHERS) and is_tried and cell.failure is None:
                yield cell

    def _best_first(self, tally: Tally, visit_ms: VisitMs, worth: Worth) -> list[tuple[int, Option]]:
        rated = []
        for surface, domain in enumerate(self._domains):
            for batch in domain.batches:
                for option in self._options(tally, surface, batch):
                    price = option.calls * visit_ms(surface, option.call_ms)
                    rate = option.error * (option.share + DECISIVE * worth(surface, option.shape)) / price
                    rated.append((rate, surface, option))
        rated.sort(key=lambda entry: (-entry[0], entry[1], entry[2].shape))
        return [(surface, option) for _, surface, option in rated]

    def _options(self, tally: Tally, surface: int, batch: int) -> list[Option]:
        part = Slice(tally, surface, batch, self._domains[surface], self._enough)
        return [option for option in options_of(part) if option.error > 0.0 and part.may_run(option.shape)]

    def _worth(self, tally: Tally) -> Worth:
        if self._value is None:
            return lambda surface, shape: 0.0
        rows: dict[tuple[int, int], BatchRows | None] = {}

        def cost(surface: int, shape: Shape) -> float | None:
            batch, context, tokens = shape
            if (surface, batch) not in rows:
                rows[surface, batch] = Slice(tally, surface, batch, self._domains[surface], self._enough).costs()
            known = rows[surface, batch]
            return None if known is None else known.ms(context, tokens)

        return self._value.worths(cost)


def sentinels(domain: Domain) -> list[Shape]:
    """Return the shapes revisited in every round: a middle one of the first batch, and a small one of the last."""
    first, last = (doublings(domain.least_tokens, domain.most(domain.batches[at])) for at in (0, -1))
    shapes = [
        (domain.batches[0], domain.reference_context, first[len(first) // 2]),
        (domain.batches[-1], domain.reference_context, last[min(1, len(last) - 1)]),
    ]
    return list(dict.fromkeys(shapes))


def _never_timed(tally: Tally) -> list[SurfaceCell]:
    return [c for c in tally.cells if not c.visits and c.failure is None and c.purpose != "held-out"]


def _call_ms(tally: Tally, cell: SurfaceCell) -> float:
    if not math.isnan(cell.ms):
        return cell.ms
    batch, _, tokens = cell.shape
    timed = [c for c in tally.of_surface(cell.surface) if not math.isnan(c.ms)]
    if not timed:
        return 1.0
    near = min(timed, key=lambda c: abs(math.log(batch / c.shape[0])) + abs(math.log(tokens / c.shape[2])))
    return near.ms * math.sqrt(max(1.0, batch * tokens / (near.shape[0] * near.shape[2])))
