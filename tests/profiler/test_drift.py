"""How slow the whole device was at every timed call."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from spectune.profiler.drift import FEWEST_CALLS, fit_drift, group_medians, robust_scale


def calls_of(cells: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return each call's cell in random order, and the cells' true costs."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(cells), each)), np.geomspace(1.0, 50.0, cells)


def test_a_wave_of_slowness_is_found_through_noise_and_tenfold_outliers() -> None:
    cells, costs = calls_of(cells=40, each=10)
    rng = np.random.default_rng(1)
    wave = np.exp(0.3 * np.sin(np.arange(400) / 40))
    ms = costs[cells] * wave * np.exp(rng.normal(0.0, 0.01, 400))
    ms[rng.random(400) < 0.15] *= 10
    found = fit_drift(ms, cells)
    ratio = found.slowness / wave
    assert np.median(np.abs(ratio / np.median(ratio) - 1.0)) < 0.03


def test_a_machine_whose_calls_only_scatter_has_no_drift() -> None:
    cells, costs = calls_of(cells=30, each=8)
    ms = costs[cells] * np.exp(np.random.default_rng(3).normal(0.0, 0.05, 240))
    assert np.abs(fit_drift(ms, cells).slowness - 1.0).max() < 0.06


def test_slowness_that_changes_quickly_is_told_by_fewer_neighbours_than_slowness_that_does_not() -> None:
    cells, costs = calls_of(cells=40, each=20)
    noise = np.exp(np.random.default_rng(4).normal(0.0, 0.02, 800))
    quick, slow = (np.exp(0.4 * np.sin(np.arange(800) / period)) for period in (3.0, 150.0))
    assert fit_drift(costs[cells] * quick * noise, cells).window < fit_drift(costs[cells] * slow * noise, cells).window


def test_a_moment_half_as_fast_again_is_a_disturbance() -> None:
    cells, costs = calls_of(cells=30, each=10)
    slow = np.where((np.arange(300) >= 100) & (np.arange(300) < 130), 2.0, 1.0)
    found = fit_drift(costs[cells] * slow, cells, windows=(6,))
    assert found.is_disturbed[105:125].all()
    assert not found.is_disturbed[:90].any() and not found.is_disturbed[140:].any()


def test_cells_timed_once_tell_nothing_of_the_moment() -> None:
    found = fit_drift(np.array([1.0, 9.0, 4.0] * FEWEST_CALLS), np.arange(3 * FEWEST_CALLS))
    assert (found.window, set(found.slowness.tolist())) == (0, {1.0})


def test_few_calls_keep_their_noise_as_noise() -> None:
    found = fit_drift(np.array([2.0, 4.0] * (FEWEST_CALLS // 2 - 1)), np.zeros(FEWEST_CALLS - 2, dtype=np.int64))
    assert set(found.slowness.tolist()) == {1.0}


def test_medians_of_groups_equal_the_medians_of_their_values() -> None:
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=200), rng.integers(0, 17, 200)
    expected = [median(values[groups == group].tolist()) for group in range(17)]
    assert group_medians(values, groups) == pytest.approx(expected)


def test_a_group_without_values_has_no_median() -> None:
    assert np.isnan(group_medians(np.array([1.0]), np.array([1]), 3)).tolist() == [True, False, True]


def test_the_robust_scale_of_a_normal_sample_is_its_standard_deviation() -> None:
    assert robust_scale(np.random.default_rng(0).normal(0.0, 3.0, 20_000)) == pytest.approx(3.0, rel=0.03)
