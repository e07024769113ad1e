"""Intervals of quality, held to scipy's and to simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from spectune.errors import PlanError
from spectune.planner.lossy.quality import accuracy_loss, mean_loss, share_interval

from ..support.lossy_runs import QUALITY


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 20), (399, 400), (1, 3000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_share_is_clopper_and_pearsons(hits: int, count: int, confidence: float) -> None:
    known = stats.binomtest(hits, count).proportion_ci(confidence, method="exact")
    assert share_interval(hits, count, confidence) == pytest.approx((known.low, known.high), abs=1e-9)


def test_the_interval_of_a_loss_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        target = rng.random(80) < 0.8
        lossy = np.where(rng.random(80) < 0.1, ~target, target)  # one answer in ten turns round: 6 points are lost
        _, low, high = accuracy_loss(target.tolist(), lossy.tolist())
        held += low <= 0.1 * 0.8 - 0.1 * 0.2 <= high
    assert held >= 0.95 * 300


def test_answers_that_never_differ_still_leave_room_for_a_loss() -> None:
    loss, low, high = accuracy_loss([True] * 100, [True] * 100)
    assert loss == 0.0 and low == -high and 0.03 < high < 0.06


def test_only_answers_that_turned_round_count() -> None:
    target, lossy = [True, True, True, False], [True, False, False, True]
    assert accuracy_loss(target, lossy)[0] == pytest.approx((2 - 1) / 4)


def test_a_mean_loss_has_the_interval_of_its_paired_differences() -> None:
    rng = np.random.default_rng(1)
    target = rng.normal(size=50)
    lossy = target - rng.normal(0.2, 0.1, 50)
    known = stats.norm.interval(0.95, (target - lossy).mean(), stats.sem(target - lossy))
    loss, low, high = mean_loss(target.tolist(), lossy.tolist())
    assert (low, high) == pytest.approx(known, abs=1e-6)
    assert loss == pytest.approx((target - lossy).mean())


@pytest.mark.parametrize(("hits", "count"), [(1, 0), (-1, 3), (4, 3)])
def test_impossible_shares_are_refused(hits: int, count: int) -> None:
    with pytest.raises(PlanError, match=f"got {hits} of {count}"):
        share_interval(hits, count)


def test_losses_are_told_on_the_same_prompts() -> None:
    with pytest.raises(PlanError, match="got 2 and 1"):
        accuracy_loss([True, False], [True])
    with pytest.raises(PlanError, match="2 prompts or more"):
        mean_loss([1.0], [1.0])


@pytest.mark.parametrize("change", [{"low": 0.03}, {"high": 0.01}, {"prompts": 0}, {"same_texts": 1.1}])
def test_a_quality_that_contradicts_itself_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        replace(QUALITY, **change)  # type: ignore[arg-type]
