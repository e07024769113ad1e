"""How far a surface is from shapes it never saw: against the budget, beside a uniform grid, and under load.

    python benchmarks/surface.py [--budgets 15,30,60,120] [--judged 60] [-o FILE]

The demo family's target and two drafters are timed, batches 1 and 8, contexts 16 to 192, tokens to 64 and 16. Every
session also times random shapes that its surface never uses, drawn by seed before anything runs; the surface's error
is judged there. The uniform grid gets the same clock, rounds, drift model and judged shapes; only where it looks
differs. Under load, another process computes in bursts meanwhile. The last line is one JSON object; `holds` is true
where the session of 60 s keeps the bars, and every session without load its budget within 10 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from spectune.profiler.design import HELD_OUT_CALLS, AdaptiveDesign, Design, sentinels
from spectune.profiler.device import detect
from spectune.profiler.domain import Domain, Shape
from spectune.profiler.latency import measure
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.repeats import repeats_of
from spectune.profiler.session import TimingSettings
from spectune.profiler.tally import SurfaceCell, Tally
from spectune.runtime.models.loading import load_model
from spectune.runtime.shapes import ForwardShapes
from spectune.tests.support.memory_journal import MemoryJournal

from result import print_result  # isort: skip

FAMILY = Path(__file__).resolve().parents[1] / "demo" / "models"
MODELS = (("target", "verify", 64), ("small", "draft", 16), ("medium", "draft", 16))
BATCHES, CONTEXTS, DTYPE = (1, 8), (16, 192), "bfloat16"
MEDIAN_BAR, P95_BAR, NOISE_BAR, NOISE_FACTOR = 0.03, 0.10, 0.05, 1.5
FEWEST_JUDGED, FEWEST_REVISITS, JUDGED_BUDGET = 30, 30, 60.0
CALLS_OF_A_GRID_CELL = 6


class UniformGrid(AdaptiveDesign):
    """Evenly spaced tokens at three contexts, every cell as often as any other, as many as the budget holds."""

    def __init__(self, domains: Sequence[Domain], *, held_out: int, tokens: Sequence[int]) -> None:
        super().__init__(domains, held_out=held_out)
        self._grid_domains, self._grid_held_out, self._tokens = tuple(domains), held_out, tuple(tokens)

    def begin(self, tally: Tally, rng: random.Random) -> None:
        """Enter the judged shapes of the adaptive design, and the grid."""
        AdaptiveDesign(self._grid_domains, held_out=self._grid_held_out).begin(draws := Tally(), rng)
        judged = {(cell.surface, cell.shape) for cell in draws.cells if cell.purpose == "held-out"}
        for surface, domain in enumerate(self._grid_domains):
            for shape in sentinels(domain):
                tally.cell(surface, shape, "sentinel")
            for shape in grid_shapes(domain, self._tokens[surface]):
                if (surface, shape) not in judged:
                    tally.cell(surface, shape)
        for surface, shape in sorted(judged):
            tally.cell(surface, shape, "held-out")

    def choose(self, tally: Tally, seconds: float, spent_share: float, visit_ms: object) -> list[SurfaceCell]:
        """Return the cells timed least, judged ones no more often than the adaptive design does."""
        assert callable(visit_ms)
        wanted = HELD_OUT_CALLS * min(1.0, spent_share + 0.05)
        cells = [c for c in tally.cells if c.failure is None and not (c.purpose == "held-out" and c.timed >= wanted)]
        cells.sort(key=lambda cell: (cell.timed, cell.number))
        chosen: list[SurfaceCell] = []
        left_ms = 1000.0 * seconds
        for cell in cells:
            if left_ms <= 0.0 and chosen:
                break
            chosen.append(cell)
            left_ms -= visit_ms(cell.surface, cell.ms if cell.visits else 5.0)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One session's surfaces against the shapes they never used."""

    design: str
    budget_s: float
    spent_s: float
    cells: int
    visits: int
    judged: int
    error_median: float
    error_p95: float
    error_signed_median: float  # predicted over measured, less 1
    repeat_noise: float  # median distance of one visit of a sentinel from its median, drift taken out
    repeat_noise_p95: float
    revisits: int  # of the sentinels of the least revisited surface
    by_surface: dict[str, dict[str, float]]


def judge(name: str, budget_s: float, spent_s: float, surfaces: Sequence[LatencySurface]) -> Judged:
    """Return how far the surfaces are from their held-out cells, all together and one by one."""
    errors = {surface.model: [held.error for held in surface.held_out()] for surface in surfaces}
    signed = [held.predicted_ms / held.cell.median_ms - 1.0 for surface in surfaces for held in surface.held_out()]
    together = [error for own in errors.values() for error in own]
    noise = [distance for surface in surfaces for distance in surface.repeat_noise()]
    return Judged(
        design=name,
        budget_s=budget_s,
        spent_s=spent_s,
        cells=sum(len(surface.measurements) for surface in surfaces) - len(together),
        visits=sum(len(cell.repeats_ms) for surface in surfaces for cell in surface.measurements),
        judged=len(together),
        error_median=statistics.median(together),
        error_p95=float(np.quantile(together, 0.95)),
        error_signed_median=statistics.median(signed),
        repeat_noise=statistics.median(noise),
        repeat_noise_p95=float(np.quantile(noise, 0.95)),
        revisits=min(len(surface.repeat_noise()) for surface in surfaces),
        by_surface={
            surface.model: {
                "error_median": statistics.median(errors[surface.model]),
                "error_p95": float(np.quantile(errors[surface.model], 0.95)),
                "repeat_noise": statistics.median(surface.repeat_noise()),
            }
            for surface in surfaces
        },
    )


def run(
    name: str, runners: Sequence[ForwardShapes], budget_s: float, design: Design, seed: int
) -> tuple[Judged, tuple[LatencySurface, ...]]:
    """Measure once and judge."""
    start = time.monotonic()
    surfaces = measure(
        runners,
        domains(),
        device=detect("cpu"),
        budget_s=budget_s,
        sink=MemoryJournal(),
        session=TimingSettings(seed=seed),
        design=design,
    )
    found = judge(name, budget_s, time.monotonic() - start, surfaces)
    print(
        f"{name:9} {budget_s:4.0f} s  {found.cells:4} cells  error {found.error_median:6.1%} "
        f"p95 {found.error_p95:6.1%}  bias {found.error_signed_median:+.1%}  noise {found.repeat_noise:.1%}",
        flush=True,
    )
    return found, surfaces


def domains() -> tuple[Domain, ...]:
    """Return what is asked of each model."""
    return tuple(Domain(batches=BATCHES, contexts=CONTEXTS, most_tokens=tokens) for _, _, tokens in MODELS)


def runners() -> list[ForwardShapes]:
    """Return the demo family, ready to be timed."""
    slots, capacity = max(BATCHES), max(CONTEXTS) + max(tokens for *_, tokens in MODELS)
    models = [(name, role, load_model(str(FAMILY / name), dtype=DTYPE)) for name, role, _ in MODELS]
    return [
        ForwardShapes(model, identity=name, dtype=DTYPE, role=role, slots=slots, capacity=capacity)
        for name, role, model in models
    ]


def grid_tokens(budget_s: float, surfaces: Sequence[LatencySurface]) -> list[int]:
    """Return the token counts per model of the densest grid that the budget can visit six times, by known costs."""
    judged_ms = HELD_OUT_CALLS * sum(
        visit_ms(surface, held.predicted_ms) for surface in surfaces for held in surface.held_out()
    )
    for share in np.arange(1.0, 0.0, -0.02):
        counts = [max(3, round(float(share) * domain.most_tokens)) for domain in domains()]
        cells_ms = sum(
            visit_ms(surface, surface.latency(*shape).ms)
            for surface, domain, count in zip(surfaces, domains(), counts, strict=True)
            for shape in grid_shapes(domain, count)
        )
        if CALLS_OF_A_GRID_CELL * cells_ms + judged_ms <= 1000.0 * budget_s:
            break
    return counts


def visit_ms(surface: LatencySurface, call_ms: float) -> float:
    """Return what one visit of a shape takes."""
    return repeats_of(surface.role).visit_ms(call_ms) + TimingSettings().own_ms


def grid_shapes(domain: Domain, count: int) -> list[Shape]:
    """Return evenly spaced tokens at three contexts and every batch."""
    low, high = domain.contexts[0], domain.contexts[-1]
    tokens = np.unique(np.linspace(1, domain.most_tokens, count).round().astype(int)).tolist()
    return list(product(domain.batches, (low, (low + high) // 2, high), tokens))


def keeps_the_bars(found: Judged) -> bool:
    """Whether a session keeps every bar of the issue."""
    slack = NOISE_FACTOR * found.repeat_noise
    return (
        found.error_median <= max(MEDIAN_BAR, slack)
        and found.error_p95 <= max(P95_BAR, slack)
        and found.repeat_noise <= NOISE_BAR
        and found.judged >= FEWEST_JUDGED
        and found.revisits >= FEWEST_REVISITS
    )


@contextmanager
def load() -> Iterator[None]:
    """Let another process compute in bursts of random length, about a third of the time."""
    neighbour = multiprocessing.get_context("spawn").Process(target=_compute_in_bursts, daemon=True)
    neighbour.start()
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.join()


def _compute_in_bursts() -> None:
    rng, matrix = random.Random(0), np.ones((400, 400))
    while True:
        until = time.monotonic() + rng.uniform(0.02, 0.5)
        while time.monotonic() < until:
            matrix @ matrix
        time.sleep(rng.uniform(0.04, 1.0))


def main() -> int:
    """Run every session; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="15,30,60,120", help="seconds, by commas")
    parser.add_argument("--judged", type=int, default=60, help="random shapes a surface is judged at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    timed, curve = runners(), []
    for budget_s in [float(budget) for budget in asked.budgets.split(",")]:
        adaptive = AdaptiveDesign(domains(), held_out=asked.judged)
        found, surfaces = run("adaptive", timed, budget_s, adaptive, asked.seed)
        curve.append(found)
        tokens = grid_tokens(budget_s, surfaces)
        grid = UniformGrid(domains(), held_out=asked.judged, tokens=tokens)
        curve.append(run("uniform", timed, budget_s, grid, asked.seed)[0])
    with load():
        loaded, _ = run("loaded", timed, JUDGED_BUDGET, AdaptiveDesign(domains(), held_out=asked.judged), asked.seed)
    held = [found for found in curve if found.design == "adaptive" and found.budget_s == JUDGED_BUDGET]
    result = {
        "benchmark": "surface",
        "machine": detect("cpu").label,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "curve": [asdict(found) for found in curve],
        "under_load": asdict(loaded),
        "holds": bool(held)
        and all(keeps_the_bars(found) for found in held)
        and all(found.spent_s <= 1.1 * found.budget_s for found in curve),
        "not_run": ["the H200 bars: no GPU on this machine"] if not torch.cuda.is_available() else [],
    }
    print_result(result, asked.output)
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
