"""Judge a profile's surfaces at seeded shapes that it never timed, in a session of their own.

The machine's pace may differ from the profile's. Sentinels run in every round and tell it; errors are given as they
are, and at the machine's pace, which are the surface's own: a profile's held-out shapes are timed at the same pace.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spectune.profiler.design import sentinels
from spectune.profiler.domain import Domain
from spectune.profiler.latency import measure
from spectune.profiler.protocols import ShapeRunner
from spectune.profiler.records.device import Device
from spectune.profiler.records.surface import LatencySurface, quantile
from spectune.profiler.records.visit import Visit
from spectune.profiler.session import TimingSettings
from spectune.profiler.tally import SurfaceCell, Tally

Json = dict[str, Any]
SHAPES, CALLS = 30, 4  # of each surface; of each shape
SEED = 7_000  # other shapes than the profile's own held-out ones
LIMIT_S = 600.0


@dataclass(slots=True)
class _Visits:
    """A sink in memory."""

    found: list[Visit] = field(default_factory=list)

    def add_visit(self, visit: Visit) -> None:
        self.found.append(visit)

    def visits(self) -> list[Visit]:
        return list(self.found)

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        """Do nothing: the caller gets them."""


class _Judging:
    """Times sentinels and seeded shapes of every surface, and nothing else."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = domains

    def begin(self, tally: Tally, rng: random.Random) -> None:
        for surface, domain in enumerate(self._domains):
            for shape in sentinels(domain):
                tally.cell(surface, shape, "sentinel")
            for shape in domain.draw(SHAPES, rng):
                tally.cell(surface, shape, "held-out")

    def choose(
        self, tally: Tally, seconds: float, spent_share: float, visit_ms: Callable[[int, float], float]
    ) -> list[SurfaceCell]:
        waiting = [cell for cell in tally.cells if cell.purpose == "held-out" and cell.failure is None]
        waiting = sorted((cell for cell in waiting if cell.timed < CALLS), key=lambda cell: (cell.timed, cell.number))
        return waiting[:10]


def judged(runners: Sequence[ShapeRunner], surfaces: Sequence[LatencySurface], device: Device) -> list[Json]:
    """Return, for each surface, its errors at `SHAPES` new shapes beside the noise of repeated calls.

    Args:
        runners: of the surfaces, in their order.
        surfaces: as a profile measured them.
        device: where.
    """
    domains = [domain_of(surface) for surface in surfaces]
    told = measure(
        runners,
        domains,
        device=device,
        budget_s=LIMIT_S,
        sink=_Visits(),
        design=_Judging(domains),
        session=TimingSettings(seed=SEED),
    )
    return [_errors(surface, now) for surface, now in zip(surfaces, told, strict=True)]


def domain_of(surface: LatencySurface) -> Domain:
    """Return what a surface answers for: all that it timed lies in it."""
    cells = [cell for cell in surface.measurements if cell.failure is None and cell.purpose != "held-out"]
    most = {batch: max(cell.tokens for cell in cells if cell.batch == batch) for batch in surface.batches}
    contexts = sorted({cell.context_tokens for cell in cells})
    return Domain(
        batches=tuple(most),
        contexts=(contexts[0], contexts[-1]) if len(contexts) > 1 else (contexts[0],),
        least_tokens=min(cell.tokens for cell in cells),
        most_tokens=max(most.values()),
        limits=tuple(most.items()),
    )


def _errors(surface: LatencySurface, now: LatencySurface) -> Json:
    def ratio(batch: int, context: int, tokens: int, ms: float) -> float:
        return ms / surface.latency(batch, context, tokens).ms

    ran = [cell for cell in now.measurements if cell.failure is None]
    rated = [(cell, ratio(cell.batch, cell.context_tokens, cell.tokens, cell.median_ms)) for cell in ran]
    pace = statistics.median(off for cell, off in rated if cell.purpose == "sentinel")
    raw = [abs(off - 1.0) for cell, off in rated if cell.purpose == "held-out"]
    at_pace = [abs(off / pace - 1.0) for cell, off in rated if cell.purpose == "held-out"]
    noise = now.repeat_noise()
    return {
        "role": surface.role,
        "shapes": len(at_pace),
        "pace": pace,
        "error_median": statistics.median(raw),
        "error_p95": quantile(raw, 0.95),
        "error_at_pace_median": statistics.median(at_pace),
        "error_at_pace_p95": quantile(at_pace, 0.95),
        "noise_median": statistics.median(noise),
        "noise_p95": quantile(noise, 0.95),
        "worst": [
            [cell.batch, cell.context_tokens, cell.tokens, off / pace]
            for cell, off in sorted(rated, key=lambda each: -abs(each[1] / pace - 1.0))[:4]
        ],
    }
