"""A few timed forwards before a profile begins: they say which shapes can pay and how long timing takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...profiler.domain import Domain, doublings
from ...profiler.protocols import ShapeRunner
from ...profiler.records.pooling import LONG_MS

MOST_GAIN = 4.0  # times a forward of one token: what costs more is left out where timing is slow, few drafts gain it
FEWEST_TOKENS = 8  # that stay in a domain, whatever they cost
CALLS_PER_CELL = 20  # of every first cell, which the budget has time for where it is not given
LEAST_BUDGET_S, MOST_BUDGET_S = 30.0, 60.0  # of what is chosen here
MOST_PROBED = 12  # tokens of whole rounds that are timed where timing is slow
HELD_OUT = 6  # shapes of each surface that judge it where timing is slow
QUICK_GRID = 0.2  # share of the least budget below which one call of every first cell limits nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCell:
    """One forward, timed once or twice."""

    surface: int
    batch: int
    tokens: int  # per sequence
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTrial:
    """What a few forwards of every model took, at one context."""

    cells: tuple[TrialCell, ...] = ()

    def ms(self, surface: int, rows: int) -> float:
        """Return milliseconds of a forward of so many rows (batch x tokens); beyond the last, in proportion.

        Linear layers do most of the work, and see rows alone: 4 sequences x 2 tokens cost what 1 x 8 do.
        """
        own = sorted({cell.batch * cell.tokens: cell.ms for cell in self.cells if cell.surface == surface}.items())
        places, values = np.array(own, dtype=np.float64).T
        last = float(places[-1])
        return float(np.interp(min(rows, last), places, values)) * max(1.0, rows / last)

    def limited(self, domains: Sequence[Domain]) -> tuple[Domain, ...]:
        """Return the domains without the shapes that could not pay, where timing these takes long."""
        if not self._is_slow(domains):
            return tuple(domains)
        return tuple(self._limited(number, domain) for number, domain in enumerate(domains))

    def held_out(self, wanted: int, domains: Sequence[Domain]) -> int:
        """Return how many shapes judge the surfaces: as many as are wanted, fewer where timing takes long."""
        return min(wanted, HELD_OUT * len(domains)) if self._is_slow(domains) else wanted

    def probed(self, wanted: int) -> int:
        """Return how many tokens the largest whole rounds verify: as many as are wanted, fewer where that is slow."""
        is_slow = min((cell.ms for cell in self.cells), default=0.0) >= LONG_MS
        return min(wanted, MOST_PROBED) if is_slow else wanted

    def _is_slow(self, domains: Sequence[Domain]) -> bool:
        return bool(self.cells) and self.grid_s(domains) > QUICK_GRID * LEAST_BUDGET_S

    def grid_s(self, domains: Sequence[Domain]) -> float:
        """Return the seconds that one call of every first cell takes."""
        return sum(
            self.ms(number, batch * tokens) / 1000.0
            for number, domain in enumerate(domains)
            for batch, _, tokens in domain.coarse()
        )

    def budget_s(self, domains: Sequence[Domain]) -> float:
        """Return the seconds for timing forwards that suit the models."""
        wanted = CALLS_PER_CELL * self.grid_s(domains) if self.cells else LEAST_BUDGET_S
        return min(max(wanted, LEAST_BUDGET_S), MOST_BUDGET_S)

    def _limited(self, number: int, domain: Domain) -> Domain:
        limits = []
        for batch in domain.batches:
            least_ms = self.ms(number, batch * domain.least_tokens)
            tokens = doublings(domain.least_tokens, domain.most_tokens)
            paying = [n for n in tokens if n <= FEWEST_TOKENS or self.ms(number, batch * n) <= MOST_GAIN * least_ms]
            if max(paying) < domain.most_tokens:
                limits.append((batch, max(paying)))
        least_ms = self.ms(number, domain.batches[0] * domain.least_tokens)
        return replace(domain, limits=tuple(limits), pools_rows=least_ms >= LONG_MS)


def try_forwards(runners: Sequence[ShapeRunner], domains: Sequence[Domain]) -> ForwardTrial:
    """Time one forward of every doubling of tokens, up to where more cannot pay; what cannot run is left out."""
    cells: list[TrialCell] = []
    for number, (runner, domain) in enumerate(zip(runners, domains, strict=True)):
        for batch in domain.batches:
            first_ms: float | None = None
            for tokens in doublings(domain.least_tokens, domain.most_tokens):
                ms = _timed_ms(runner, batch, domain.reference_context, tokens)
                if ms is None:
                    break
                cells.append(TrialCell(surface=number, batch=batch, tokens=tokens, ms=ms))
                first_ms = first_ms or ms
                if tokens >= FEWEST_TOKENS and ms > MOST_GAIN * first_ms:
                    break
    return (
        ForwardTrial(cells=tuple(cells))
        if {cell.surface for cell in cells} == {*range(len(runners))}
        else ForwardTrial()
    )


def _timed_ms(runner: ShapeRunner, batch: int, context: int, tokens: int) -> float | None:
    try:
        call = runner.prepare(batch, context, tokens)
        call()
        start = time.perf_counter_ns()
        call()
    except Exception:  # the profile meets it again and keeps it as the cell's failure
        return None
    return (time.perf_counter_ns() - start) / 1e6
