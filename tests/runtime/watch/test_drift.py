"""Drift: false alarms are as rare as stated whatever the speeds look like, and what is wrong is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from spectune.errors import RequestError
from spectune.runtime.watch.drift import STAKES, EProcess, PromiseTest, direction_of, money_of

STREAMS, BLOCKS, RATE = 400, 600, 0.05
MOST_ALARMS = int(binom.ppf(0.999, STREAMS, RATE))  # of streams whose rate of alarms is exactly the stated one

Speeds = Callable[[np.random.Generator], np.ndarray]


def alarms(speeds: Speeds, low: float = 90.0, high: float = 110.0) -> int:
    """Return in how many streams drift is ever found."""
    found = 0
    for seed in range(STREAMS):
        test = PromiseTest(low, high, RATE)
        found += any(test.add(speed) for speed in speeds(np.random.default_rng(seed)))
    return found


def on_the_edge(generator: np.random.Generator) -> np.ndarray:
    """Half of the blocks are below 90, and how far is wild."""
    return 90.0 + generator.standard_cauchy(BLOCKS)


def alike(generator: np.random.Generator) -> np.ndarray:
    """Blocks drawn around 100 that resemble the ones before them, with heavy tails."""
    noise = np.zeros(BLOCKS)
    for block, push in enumerate(generator.standard_t(3, BLOCKS)):
        noise[block] = 0.8 * noise[block - 1] + push
    return 100.0 + noise


def stalled(generator: np.random.Generator) -> np.ndarray:
    """Blocks around 95, of which a third lasts twice as long as usual."""
    return np.where(generator.random(BLOCKS) < 0.3, 47.0, 95.0 + generator.standard_normal(BLOCKS))


@pytest.mark.parametrize("speeds", [on_the_edge, alike, stalled])
def test_false_alarms_keep_to_their_rate(speeds: Speeds) -> None:
    assert alarms(speeds) <= MOST_ALARMS


@pytest.mark.parametrize(("speed", "direction"), [(85.0, "slower"), (115.0, "faster")])
def test_a_speed_outside_the_interval_is_found_and_its_direction_told(speed: float, direction: str) -> None:
    test, generator = PromiseTest(90.0, 110.0, 0.01), np.random.default_rng(0)
    told = [test.add(speed + 5.0 * noise) for noise in generator.standard_normal(60)]
    assert [one for one in told if one] == [direction] and test.found == direction


def test_a_change_after_a_long_good_time_is_found_too() -> None:
    test = PromiseTest(90.0, 110.0, 0.01)
    assert not any(test.add(100.0) for _ in range(5000))
    assert any(test.add(80.0) for _ in range(60))


def test_drift_is_told_once() -> None:
    test = PromiseTest(90.0, 110.0, 0.01)
    assert sum(test.add(10.0) is not None for _ in range(100)) == 1


def test_money_is_the_sum_over_all_starts_and_stakes() -> None:
    blocks = [bool(bit) for bit in np.random.default_rng(5).random(40) < 0.6]
    evidence = EProcess()
    for is_bad in blocks:
        money = evidence.add(1.0 if is_bad else -1.0)
    signs = [1 if is_bad else -1 for is_bad in blocks]
    expected = 0.0
    for stake in STAKES:
        for start in range(1, 2000):
            won = math.prod(1 + stake * sign for sign in signs[start - 1 :])
            expected += won / (start * (start + 1)) / len(STAKES)
    expected += 1 / 2000  # the starts that were left out, none of which has begun
    assert money == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1), st.integers(0, 400), st.floats(0.0, 1.0))
def test_money_of_many_blocks_at_once_is_that_of_one_after_another(seed: int, count: int, share: float) -> None:
    blocks = np.random.default_rng(seed).random(count) < share
    evidence = EProcess()
    one_by_one = [evidence.add(1.0 if is_bad else -1.0) for is_bad in blocks]
    np.testing.assert_allclose(np.minimum(money_of(blocks), 1e100), np.minimum(one_by_one, 1e100), rtol=1e-9)


@pytest.mark.parametrize("middle", [70.0, 88.0, 100.0, 112.0, 130.0])
def test_what_is_found_of_many_blocks_at_once_is_what_is_found_of_one_after_another(middle: float) -> None:
    for seed in range(20):
        speeds = np.random.default_rng(seed).normal(middle, 8.0, 300).tolist()
        test = PromiseTest(90.0, 110.0, 0.01)
        for speed in speeds:
            test.add(speed)
        assert direction_of(speeds, 90.0, 110.0, 0.01) == test.found


def test_nothing_is_found_of_no_blocks() -> None:
    assert direction_of((), 90.0, 110.0, 0.01) is None


def test_fair_bets_keep_the_mean_money_at_1() -> None:
    depth = 12
    total = 0.0
    for outcome in range(2**depth):  # every stream of so many fair coins
        evidence = EProcess()
        for block in range(depth):
            evidence.add(1.0 if outcome >> block & 1 else -1.0)
        total += evidence.money
    assert total / 2**depth == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(RequestError, match="a rate of false alarms is a probability"):
        PromiseTest(1.0, 2.0, rate)
