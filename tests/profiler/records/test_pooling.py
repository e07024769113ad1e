"""Costs of long forwards, pooled over a surface (`profiler/records/pooling.py`)."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from spectune.profiler.drift import fit_drift, group_medians
from spectune.profiler.records.measurement import Measurement, Purpose
from spectune.profiler.records.pooling import LONG_MS, Shapes, pooled, pooled_cells
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit
from spectune.profiler.tally import Tally

GRID = [(b, c, n) for b, c, n in product((1, 4), (64, 400), (1, 2, 4, 8, 16, 17, 32)) if c == 64 or n in (1, 8, 32)]


def true_ms(batch: int, context: int, tokens: int) -> float:
    """Return a cost with a plateau, a step behind 16 rows, and attention."""
    rows = batch * tokens
    return 60.0 + 0.5 * rows + 25.0 * (rows > 16) + (0.005 * batch + 0.001 * rows) * (context - 64)


def relative_errors(found: np.ndarray, shapes: list[tuple[int, int, int]] = GRID) -> np.ndarray:
    errors: np.ndarray = np.abs(found / np.array([true_ms(*shape) for shape in shapes]) - 1.0)
    return errors


def cells_of(noise: float, *, calls: int = 2, seed: int = 0, scale: float = 1.0) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    return [
        Measurement(
            batch=b,
            context_tokens=c,
            tokens=n,
            repeats_ms=tuple(scale * true_ms(b, c, n) * np.exp(rng.normal(0.0, noise, calls))),
        )
        for b, c, n in GRID
    ]


@pytest.mark.parametrize("seed", range(5))
def test_what_all_cells_say_together_is_nearer_the_truth_than_two_calls_of_each(seed: int) -> None:
    cells = cells_of(0.08, seed=seed)
    own = relative_errors(np.array([cell.median_ms for cell in cells]))
    assert relative_errors(pooled_cells(cells)).mean() < 0.95 * own.mean()


def test_exact_costs_of_the_form_are_left_exact() -> None:
    ms = np.array([true_ms(*shape) for shape in GRID])
    assert pooled(Shapes.of(GRID), ms, np.full(len(GRID), 0.05)) == pytest.approx(ms, rel=1e-6)


def test_a_cell_unlike_the_form_keeps_its_cost_where_its_calls_are_many() -> None:
    ms = np.array([true_ms(*shape) for shape in GRID])
    odd = GRID.index((1, 64, 4))
    ms[odd] *= 1.5
    errors = np.full(len(GRID), 0.05)
    errors[odd] = 0.001
    assert pooled(Shapes.of(GRID), ms, errors)[odd] > 1.35 * true_ms(*GRID[odd])
    errors[odd] = 0.2
    assert pooled(Shapes.of(GRID), ms, errors)[odd] < 1.05 * true_ms(*GRID[odd])


def test_a_cell_without_an_error_of_its_own_is_what_the_others_say() -> None:
    ms = np.array([true_ms(*shape) for shape in GRID])
    errors = np.full(len(GRID), 0.02)
    unknown = GRID.index((4, 400, 8))
    ms[unknown], errors[unknown] = 1.0, math.inf
    assert pooled(Shapes.of(GRID), ms, errors)[unknown] == pytest.approx(true_ms(*GRID[unknown]), rel=0.02)


@pytest.mark.parametrize(
    ("noise", "scale", "calls"),
    [(0.08, 0.5 * LONG_MS / 100.0, 2), (0.002, 1.0, 2), (0.08, 1.0, 1)],
    ids=["short calls", "calls that agree", "no call repeated"],
)
def test_cells_are_left_as_they_were_timed(noise: float, scale: float, calls: int) -> None:
    cells = cells_of(noise, calls=calls, scale=scale)
    assert pooled_cells(cells) == pytest.approx([cell.median_ms for cell in cells])


def test_a_surface_answers_with_pooled_costs_and_judges_itself_by_cells_that_are_none_of_them() -> None:
    cells = cells_of(0.08)
    held = Measurement(batch=4, context_tokens=64, tokens=6, repeats_ms=(true_ms(4, 64, 6),), purpose="held-out")
    surface = LatencySurface(
        device="d", model="m", role="verify", regime="eager", dtype="bfloat16", measurements=(*cells, held)
    )
    place = GRID.index((4, 64, 4))
    assert surface.latency(4, 64, 4).ms == pytest.approx(pooled_cells(cells)[place])
    assert surface.latency(4, 64, 4).source == "measured"
    (judged,) = surface.held_out()
    assert judged.error < 0.25


def test_moods_are_told_by_cells_that_were_timed_once_where_costs_are_pooled() -> None:
    shapes = [*GRID, *((b, c + 1, n) for b, c, n in GRID)]
    costs = np.array([true_ms(*shape) for shape in shapes])
    own, together = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        twice = np.concatenate([rng.permutation(len(GRID)) for _ in range(2)])
        cells = np.concatenate([twice, len(GRID) + rng.permutation(len(GRID))])
        mood = np.where(np.arange(len(cells)) // 14 % 2, 1.4, 1.0)
        ms = costs[cells] * mood * np.exp(rng.normal(0.0, 0.01, len(cells)))
        own.append(_left(ms, cells, costs, fit_drift(ms, cells).slowness))
        together.append(_left(ms, cells, costs, fit_drift(ms, cells, pool=partial(_pool, shapes)).slowness))
    assert np.mean(together) < 0.85 * np.mean(own)


ODD = 1.4  # times the form's cost, of held-out shapes
CALLS = 4  # of each
MOODS = np.exp(0.35 * np.sin(np.arange(400) / 9))


def judged(held_out: list[tuple[int, int, int]], scale: float = 1.0) -> Tally:
    """Return a session of few sentinels and many shapes unlike the form, through a synthetic drift."""
    tally, rng = Tally(), np.random.default_rng(5)
    shapes: list[tuple[tuple[int, int, int], Purpose]] = [(shape, "sentinel") for shape in GRID[::7]]
    shapes += [(shape, "held-out") for shape in held_out]
    for round_ in range(CALLS):
        for place in rng.permutation(len(shapes)):
            (batch, context, tokens), purpose = shapes[place]
            ordinal = sum(cell.timed for cell in tally.cells)
            own = 1.0 if purpose == "sentinel" else scale * ODD ** (place % 2)
            ms = float(own * true_ms(batch, context, tokens) * MOODS[ordinal] * np.exp(rng.normal(0.0, 0.01)))
            told = {"surface": 0, "batch": batch, "context_tokens": context, "tokens": tokens, "purpose": purpose}
            tally.note(Visit(**told, ordinal=ordinal, round=round_, spent_s=0.0, ms=ms))
    tally.settle()
    return tally


def test_drift_is_told_by_repeats_of_held_out_shapes_though_they_are_unlike_the_form() -> None:
    tally = judged([shape for shape in GRID if shape not in GRID[::7]])
    wrong = tally.drift.slowness / MOODS[: len(tally.drift.slowness)]
    assert np.median(np.abs(wrong / np.median(wrong) - 1.0)) < 0.06
    odd = [cell for cell in tally.cells if cell.purpose == "held-out"]
    ratios = np.array([cell.ms / true_ms(*cell.shape) / ODD ** (cell.number % 2) for cell in odd])
    assert np.median(np.abs(ratios / np.median(ratios) - 1.0)) < 0.04


def test_costs_of_held_out_shapes_change_nothing_of_the_surface() -> None:
    elsewhere = [shape for shape in GRID if shape not in GRID[::7]]
    once, thrice = (
        [cell.ms for cell in judged(elsewhere, scale).cells if cell.purpose == "sentinel"] for scale in (1.0, 3.0)
    )
    assert once == pytest.approx(thrice, rel=1e-6)


def test_a_held_out_shape_timed_once_tells_no_mood() -> None:
    rng = np.random.default_rng(1)
    cells = rng.permutation(np.repeat(np.arange(len(GRID)), 3))
    ms = np.array([true_ms(*shape) for shape in GRID])[cells] * MOODS[: len(cells)]
    place = len(cells) // 2
    ms, cells = np.insert(ms, place, 500.0), np.insert(cells, place, len(GRID))
    pool = partial(_pool_of_first, GRID)
    found = fit_drift(ms, cells, pool=pool, apart=cells == len(GRID))
    alone = fit_drift(np.delete(ms, place), np.delete(cells, place), pool=pool)
    assert np.delete(found.slowness, place).tolist() == pytest.approx(alone.slowness.tolist(), rel=0.03)


def _pool_of_first(shapes: list[tuple[int, int, int]], logs: np.ndarray) -> np.ndarray:
    return np.concatenate([_pool(shapes, logs[: len(shapes)]), logs[len(shapes) :]])


def _pool(shapes: list[tuple[int, int, int]], logs: np.ndarray) -> np.ndarray:
    return np.log(pooled(Shapes.of(shapes), np.exp(logs), np.full(len(shapes), 0.05)))


def _left(ms: np.ndarray, cells: np.ndarray, costs: np.ndarray, slowness: np.ndarray) -> float:
    """Return how far the cells' costs are off, up to the machine's pace, once drift is taken out."""
    apart = group_medians(np.log(ms / slowness), cells) - np.log(costs)
    return float(np.abs(apart - np.median(apart)).mean())


def test_costs_that_are_not_finite_are_left_alone() -> None:
    ms = np.array([math.inf, *(true_ms(*shape) for shape in GRID[1:])])
    assert pooled(Shapes.of(GRID), ms, np.full(len(GRID), 0.05)).tolist() == ms.tolist()


def test_moments_that_a_call_hardly_feels_do_not_run_away() -> None:
    rng = np.random.default_rng(0)
    shapes = [(1, 64, 2**power) for power in range(14)]
    costs = 4.0 ** np.arange(14)
    cells = np.concatenate([rng.permutation(14) for _ in range(4)])
    ms = 12.0 * costs[cells] * np.exp(rng.normal(0.0, 0.8, len(cells)))
    found = fit_drift(ms, cells, pool=partial(_pool, shapes))
    assert np.isfinite(found.slowness).all() and found.slowness.max() <= math.exp(3.0)
