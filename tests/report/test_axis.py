"""Axes: where values lie and which numbers stand beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from spectune.errors import MeasurementError
from spectune.report.axis import (
    Axis,
    axis_of_counts,
    axis_of_doublings,
    axis_of_errors,
    axis_of_shares,
    axis_of_times,
    number,
    other_counts,
    significant,
    spans_much,
)

times = some.lists(some.floats(1e-3, 1e5), min_size=1, max_size=20)
counts = some.lists(some.integers(1, 10**6), min_size=1, max_size=20)


@given(times, some.booleans())
def test_every_time_lies_inside_its_axis(values: list[float], is_log: bool) -> None:
    axis = axis_of_times("ms", values, is_log=is_log)
    assert all(0.0 <= axis.place(value) <= 1.0 for value in values)


@given(counts)
def test_every_count_lies_inside_its_axis(values: list[int]) -> None:
    axis = axis_of_counts("tokens", values)
    assert all(0.0 <= axis.place(value) <= 1.0 for value in values)


@given(times, some.booleans())
def test_an_axis_of_times_has_few_numbers_all_inside_it(values: list[float], is_log: bool) -> None:
    axis = axis_of_times("ms", values, is_log=is_log)
    assert 1 <= len(axis.ticks) <= 10
    assert all(-1e-9 <= axis.place(tick) <= 1.0 + 1e-9 for tick in axis.ticks if tick or not axis.is_log)


@given(counts)
def test_an_axis_of_counts_has_whole_numbers_inside_it(values: list[int]) -> None:
    axis = axis_of_counts("tokens", values)
    assert all(tick == int(tick) and 0.0 <= axis.place(tick) <= 1.0 for tick in axis.ticks)


def test_times_begin_at_zero_where_differences_count() -> None:
    axis = axis_of_times("ms", [2.0, 3.0], is_log=False)
    assert (axis.low, axis.ticks[0]) == (0.0, 0.0)


def test_equal_ratios_are_equal_distances_where_ratios_count() -> None:
    axis = axis_of_times("ms", [1.0, 100.0], is_log=True)
    assert axis.place(10.0) - axis.place(1.0) == pytest.approx(axis.place(100.0) - axis.place(10.0))


def test_counts_that_span_much_carry_powers_of_two() -> None:
    assert axis_of_counts("tokens", [1, 64]).ticks == (1, 2, 4, 8, 16, 32, 64)


def test_counts_that_span_little_carry_every_whole_number() -> None:
    assert axis_of_counts("depth", [1, 2, 3, 4]).ticks == (1, 2, 3, 4)


def test_counts_that_are_compared_by_ratios_are_all_ticks_at_equal_distances() -> None:
    axis = axis_of_doublings("batch", [4, 1, 2, 4])
    assert axis.ticks == (1, 2, 4)
    assert axis.place(2) - axis.place(1) == pytest.approx(axis.place(4) - axis.place(2))


@given(counts)
def test_an_axis_of_counts_spaced_the_other_way_has_two_numbers_or_more(values: list[int]) -> None:
    other = other_counts(axis_of_counts("tokens", values), values)
    if len(set(values)) > 1:
        assert other is not None and len(other.ticks) >= 2
        assert all(0.0 <= other.place(tick) <= 1.0 for tick in other.ticks)


def test_counts_between_two_powers_of_two_are_ticks_themselves() -> None:
    other = other_counts(axis_of_counts("tokens", [5, 6, 7]), [5, 6, 7])
    assert other is not None and (other.is_log, other.ticks) == (True, (5, 6, 7))


def test_a_single_count_stands_in_the_middle() -> None:
    axis = axis_of_doublings("batch", [8])
    assert (axis.ticks, axis.place(8)) == ((8,), 0.5)


def test_zero_lies_in_the_middle_of_an_axis_of_errors() -> None:
    assert axis_of_errors("error", [0.5, -7.0]).place(0.0) == pytest.approx(0.5)


def test_an_axis_of_errors_without_any_reaches_beyond_one_percent() -> None:
    assert axis_of_errors("error", []).high > 1.0


def test_a_negative_tick_has_a_minus_sign_and_its_unit() -> None:
    assert axis_of_errors("error", [4.0]).label(-2.0) == "−2%"
    assert axis_of_shares("share").label(50.0) == "50%"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.5, "0.5"), (2.0, "2"), (200.0, "200"), (5000.0, "5,000"), (1e6, "1,000,000")]
)
def test_round_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(2.9, 3, "2.90"), (0.00996, 2, "0.0100"), (123.456, 3, "123"), (12345.6, 3, "12,346"), (0.0, 2, "0")],
)
def test_measured_numbers_keep_the_digits_that_count(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@pytest.mark.parametrize(("values", "answer"), [([], False), ([2.0], False), ([1.0, 15.0], False), ([1.0, 16.0], True)])
def test_values_span_much_from_a_ratio_of_sixteen(values: list[float], answer: bool) -> None:
    assert spans_much(values) is answer


def test_an_axis_of_nothing_is_refused() -> None:
    with pytest.raises(MeasurementError, match="nothing to draw"):
        axis_of_times("ms", [], is_log=False)


@pytest.mark.parametrize(("low", "high", "is_log"), [(1.0, 1.0, False), (0.0, 1.0, True), (0.0, float("inf"), False)])
def test_an_axis_that_cannot_place_values_is_refused(low: float, high: float, is_log: bool) -> None:
    with pytest.raises(MeasurementError):
        Axis(title="ms", low=low, high=high, ticks=(), is_log=is_log)
