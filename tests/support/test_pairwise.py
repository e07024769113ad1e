"""The covering array that the tests of losslessness walk through."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from .pairwise import covering, crossed

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=6)


@given(SIZES)
def test_every_two_levels_of_different_factors_meet_in_a_row(sizes: list[int]) -> None:
    factors = {f"factor {place}": range(size) for place, size in enumerate(sizes)}
    rows = covering(factors)
    for first, second in combinations(factors, 2):
        met = {(row[first], row[second]) for row in rows}
        assert len(met) == len(factors[first]) * len(factors[second])


@given(SIZES)
def test_every_row_has_one_level_of_every_factor(sizes: list[int]) -> None:
    factors = {f"factor {place}": range(size) for place, size in enumerate(sizes)}
    assert all(set(row) == set(factors) and all(row[f] in factors[f] for f in factors) for row in covering(factors))


def test_a_covering_array_is_far_smaller_than_all_combinations() -> None:
    assert len(covering({name: range(4) for name in "abcdef"})) < 4**6 / 100


def test_it_is_the_same_every_time() -> None:
    factors = {"policy": ("a", "b", "c"), "batch": (1, 2), "temperature": (0.0, 0.7)}
    assert covering(factors) == covering(factors)


def test_what_is_crossed_runs_on_a_thinned_covering_array_and_on_all_else_where_slow_ones_run() -> None:
    factors = {"policy": ("a", "b", "c"), "batch": (1, 2), "temperature": (0.0, 0.7)}
    names, cases = crossed(**factors).args
    marks = {case.values: [mark.name for mark in case.marks] for case in cases}
    quick = [values for values, own in marks.items() if own == ["thinned"]]
    assert names == tuple(factors) and [case.values for case in cases] == list(product(*factors.values()))
    assert sorted(quick) == sorted(tuple(row.values()) for row in covering(factors))
    assert all(own == ["slow"] for values, own in marks.items() if values not in quick)
