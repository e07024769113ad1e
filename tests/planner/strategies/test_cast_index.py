"""CAST's index scan, in exact numbers: Theorem 4.1, and what the scan is for any cost curve."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.strategies.cast_growth import last_steep

from ...support.cost_curves import KINDS, CurveKind, Number, random_costs, random_utilities

FRACTIONS = st.fractions(min_value=0, max_value=4, max_denominator=12)


def select_max_valid_index(utilities: Sequence[Number], costs: Sequence[Number], threshold: Number) -> int:
    """What is compiled, as Python runs it: in exact numbers where those are given."""
    found: int = vars(last_steep)["__wrapped__"](utilities, costs, len(utilities) - 1, threshold)
    return found


def strictly_selected(utilities: list[Fraction], costs: list[Fraction], threshold: Fraction) -> int:
    """The scan with the paper's printed strict comparison."""
    last = 0
    for index in range(1, len(utilities)):
        if utilities[index] - utilities[last] > threshold * (costs[index] - costs[last]):
            last = index
    return last


def theorem_case(seed: int) -> tuple[int, list[Fraction], list[Fraction], Fraction]:
    """Return K, utilities, linear costs and the threshold of Theorem 4.1 for up to 4 samples."""
    source = random.Random(seed)
    batch, nodes = source.randint(1, 4), source.randint(2, 9)
    rows = [sorted(source.sample(range(1, 1000), nodes), reverse=True) for _ in range(batch)]
    values = [[Fraction(value, 1000) for value in row] for row in rows]
    slope, intercept = Fraction(source.randint(1, 50), 7), Fraction(source.randint(0, 50), 11)
    utilities = [Fraction(sum(sum(row[:k], Fraction(0)) for row in values), batch) for k in range(nodes + 1)]
    costs = [slope * k + intercept for k in range(nodes + 1)]
    kept = source.randint(1, nodes)
    return kept, utilities, costs, sum((row[kept - 1] for row in values), Fraction(0)) / (batch * slope)


@pytest.mark.parametrize("seed", range(300))
def test_linear_costs_and_the_threshold_of_theorem_4_1_keep_exactly_k(seed: int) -> None:
    kept, utilities, costs, threshold = theorem_case(seed)
    assert select_max_valid_index(utilities, costs, threshold) == kept


@pytest.mark.parametrize("seed", range(50))
def test_the_strict_comparison_would_keep_one_less(seed: int) -> None:
    kept, utilities, costs, threshold = theorem_case(seed)
    assert strictly_selected(utilities, costs, threshold) == kept - 1


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=12), FRACTIONS)
def test_the_scan_is_the_largest_best_index_for_any_costs(
    points: list[tuple[Fraction, Fraction]], threshold: Fraction
) -> None:
    utilities, costs = [utility for utility, _ in points], [cost for _, cost in points]
    surplus = [utility - threshold * cost for utility, cost in points]
    best = max(index for index, value in enumerate(surplus) if value == max(surplus))
    assert select_max_valid_index(utilities, costs, threshold) == best


def first_stop(utilities: list[Fraction], costs: list[Fraction], threshold: Fraction) -> int:
    """Go on while the next node alone pays."""
    last = 0
    while last + 1 < len(utilities) and utilities[last + 1] - utilities[last] >= threshold * (
        costs[last + 1] - costs[last]
    ):
        last += 1
    return last


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=12), FRACTIONS)
def test_for_falling_gains_and_rising_costs_the_first_stop_is_the_best_index(
    steps: list[tuple[Fraction, Fraction]], threshold: Fraction
) -> None:
    gains, prices = sorted((gain for gain, _ in steps), reverse=True), sorted(price for _, price in steps)
    utilities = [sum(gains[:k], Fraction(0)) for k in range(len(steps) + 1)]
    costs = [sum(prices[:k], Fraction(0)) for k in range(len(steps) + 1)]
    assert select_max_valid_index(utilities, costs, threshold) == first_stop(utilities, costs, threshold)


def test_for_a_tile_step_the_first_stop_is_too_early() -> None:
    utilities, costs = [Fraction(n) for n in (0, 1, 3, 4)], [Fraction(n) for n in (0, 2, 2, 2)]
    assert (first_stop(utilities, costs, Fraction(1)), select_max_valid_index(utilities, costs, Fraction(1))) == (0, 3)


def test_the_scan_jumps_over_a_step_that_a_later_node_pays_for() -> None:
    utilities, costs = [0.0, 0.5, 0.9, 1.2], [1.0, 2.0, 2.0, 2.0]  # one tile of three nodes
    assert select_max_valid_index(utilities, costs, 1.0) == 3


def test_the_scan_stays_at_the_origin_when_nothing_pays() -> None:
    assert select_max_valid_index([0.0, 0.5, 0.9], [1.0, 2.0, 3.0], 1.0) == 0


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=12), st.lists(FRACTIONS, min_size=2, max_size=5))
def test_the_index_never_grows_with_the_threshold(
    steps: list[tuple[Fraction, Fraction]], thresholds: list[Fraction]
) -> None:
    utilities = [sum((gain for gain, _ in steps[:k]), Fraction(0)) for k in range(len(steps) + 1)]
    costs = [sum((cost for _, cost in steps[:k]), Fraction(0)) for k in range(len(steps) + 1)]
    chosen = [select_max_valid_index(utilities, costs, threshold) for threshold in sorted(thresholds)]
    assert all(later <= earlier or costs[later] == costs[earlier] for earlier, later in pairwise(chosen))


@pytest.mark.parametrize("seed", range(30))
def test_the_threshold_that_equals_the_speed_up_finds_the_best_speed_up(seed: int) -> None:
    random_steps = np.random.default_rng(seed)
    utilities = (1.0 + np.concatenate(([0.0], np.sort(random_steps.random(20))[::-1].cumsum()))).tolist()
    costs = (1.0 + np.concatenate(([0.0], (random_steps.random(20) ** 3).cumsum()))).tolist()
    draft_cost, speed_up = random_steps.random(), 0.0
    for _ in range(20):
        index = select_max_valid_index(utilities, costs, speed_up)
        speed_up = utilities[index] / (draft_cost + costs[index])
    assert speed_up == pytest.approx(max(u / (draft_cost + c) for u, c in zip(utilities, costs, strict=True)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_the_scan_is_the_brute_force_best_on_tables_of_every_shape(kind: CurveKind, seed: int) -> None:
    random_steps = np.random.default_rng(seed)
    costs, utilities = random_costs(kind, random_steps, 48), random_utilities(random_steps, 48)
    threshold = random_steps.uniform(0.0, 6.0)
    found = select_max_valid_index(utilities.tolist(), costs.tolist(), threshold)
    assert utilities[found] - threshold * costs[found] == pytest.approx(max(utilities - threshold * costs), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_the_fixed_point_of_the_threshold_is_the_best_throughput_on_every_shape(kind: CurveKind, seed: int) -> None:
    random_steps = np.random.default_rng(seed)
    costs, utilities = random_costs(kind, random_steps, 48), random_utilities(random_steps, 48)
    draft_cost, threshold, before = random_steps.uniform(0.0, 2.0), 0.0, -1.0
    while threshold > before:
        before = threshold
        index = select_max_valid_index(utilities.tolist(), costs.tolist(), threshold)
        threshold = utilities[index] / (draft_cost + costs[index])
    assert threshold == pytest.approx(max(utilities / (draft_cost + costs)), rel=1e-12)
