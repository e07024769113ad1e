"""The latency surface: exact where measured, linear between, silent outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from spectune.errors import MeasurementError
from spectune.profiler.records.measurement import NORMAL_FROM_MAD, Measurement
from spectune.profiler.records.surface import LatencySurface

Cost = Callable[[int, int, int], float]
BATCHES, CONTEXTS, TOKENS = (1, 4), (0, 512, 2048), (1, 2, 4, 8, 16)


def cell(batch: int, context: int, tokens: int, *repeats_ms: float) -> Measurement:
    return Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=repeats_ms)


def surface(cells: Iterable[Measurement], role: str = "verify") -> LatencySurface:
    return LatencySurface(device="d", model="m", role=role, regime="eager", dtype="float32", measurements=tuple(cells))


def of_cost(cost: Cost) -> LatencySurface:
    return surface(cell(b, c, n, cost(b, c, n)) for b in BATCHES for c in CONTEXTS for n in TOKENS)


def bilinear(batch: int, context: int, tokens: int) -> float:
    return 1.0 + batch * (0.1 * tokens + 0.001 * context + 1e-5 * tokens * context)


def stepped(costs: dict[int, float]) -> LatencySurface:
    return surface(cell(1, 0, tokens, ms) for tokens, ms in costs.items())


def test_a_measured_point_is_returned_exactly_and_says_so() -> None:
    found = of_cost(lambda b, c, n: b + c / 7 + n / 3).latency(4, 512, 8)
    assert (found.ms, found.source) == (4 + 512 / 7 + 8 / 3, "measured")


@given(some.sampled_from(BATCHES), some.integers(0, 2048), some.integers(1, 16))
def test_a_bilinear_cost_is_met_everywhere_inside(batch: int, context: int, tokens: int) -> None:
    assert of_cost(bilinear).latency(batch, context, tokens).ms == pytest.approx(bilinear(batch, context, tokens))


def test_between_two_measured_points_the_cost_is_their_straight_line() -> None:
    found = stepped({1: 10.0, 5: 30.0, 9: 31.0}).latency(1, 0, 2)
    assert (found.ms, found.source) == (15.0, "interpolated")


@pytest.mark.parametrize(
    ("point", "named"),
    [((1, 0, 17), r"tokens 1\.\.16"), ((1, 2049, 8), r"context 0\.\.2048"), ((2, 0, 8), r"measured: \[1, 4\]")],
)
def test_a_point_outside_raises_and_names_the_range(point: tuple[int, int, int], named: str) -> None:
    with pytest.raises(MeasurementError, match=named):
        of_cost(bilinear).latency(*point)


def test_a_ragged_grid_is_read_from_the_contexts_that_reach_the_tokens() -> None:
    ragged = surface(
        [cell(1, 0, 1, 1.0), cell(1, 0, 9, 9.0), cell(1, 10, 1, 5.0), cell(1, 20, 1, 3.0), cell(1, 20, 9, 11.0)]
    )
    assert ragged.latency(1, 10, 5).ms == 6.0  # halfway between 5.0 at context 0 and 7.0 at context 20


def test_a_table_holds_the_latency_of_every_count_and_nothing_for_nothing() -> None:
    costs = of_cost(bilinear)
    table = costs.table(1, 100, 16)
    assert table[0] == 0.0
    assert table[1:] == pytest.approx([costs.latency(1, 100, tokens).ms for tokens in range(1, 17)])


def test_a_table_beyond_the_range_raises() -> None:
    with pytest.raises(MeasurementError, match=r"tokens 1\.\.16"):
        of_cost(bilinear).table(1, 0, 17)


def test_a_count_runs_padded_where_a_larger_measured_shape_is_cheaper() -> None:
    padded = stepped({1: 3.0, 2: 1.0, 4: 5.0, 8: 4.0}).padded(1, 0, 8)
    assert padded.run_tokens.tolist() == [0, 2, 2, 3, 8, 8, 8, 8, 8]
    assert padded.ms.tolist() == [0.0, 1.0, 1.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0]


@given(some.dictionaries(some.integers(1, 20), some.floats(0.1, 9.0), min_size=1))
def test_padded_costs_equal_the_minimum_of_the_own_shape_and_larger_measured_ones(costs: dict[int, float]) -> None:
    surface = stepped(costs)
    padded = surface.padded(1, 0, max(costs))
    for tokens in range(min(costs), max(costs) + 1):
        own, larger = surface.latency(1, 0, tokens).ms, [ms for shape, ms in costs.items() if shape > tokens]
        assert padded.ms[tokens] == min([own, *larger])
        assert surface.latency(1, 0, int(padded.run_tokens[tokens])).ms == padded.ms[tokens]


def test_equal_costs_run_the_smaller_shape() -> None:
    assert stepped({1: 2.0, 2: 2.0, 4: 2.0}).padded(1, 0, 3).run_tokens.tolist() == [0, 1, 2, 3]


def test_a_larger_shape_that_is_cheaper_by_noise_alone_is_not_run() -> None:
    cells = [cell(1, 0, 1, 0.9, 1.0, 1.1), cell(1, 0, 2, 0.88, 0.98, 1.08)]
    assert surface(cells).padded(1, 0, 1).run_tokens.tolist() == [0, 1]


def test_tokens_below_the_fewest_measured_run_padded() -> None:
    assert stepped({4: 2.0, 8: 3.0}).padded(1, 0, 2).run_tokens.tolist() == [0, 4, 4]


def test_the_steps_of_the_densest_row_stand_at_every_context() -> None:
    dense = [cell(1, 0, n, 1.0 if n < 5 else 2.0) for n in range(1, 9)]
    steps = surface([*dense, cell(1, 100, 1, 2.0), cell(1, 100, 8, 4.0)])  # 1 more at 1 token, 2 more at 8
    assert steps.latency(1, 100, 5).ms - steps.latency(1, 100, 4).ms == pytest.approx(1.0 + 1.0 / 7)
    assert steps.latency(1, 50, 4).ms == pytest.approx(1.0 + (1.0 + 3 / 7) / 2)


def test_a_held_out_cell_judges_the_surface_and_is_no_part_of_it() -> None:
    judge = Measurement(batch=1, context_tokens=0, tokens=3, repeats_ms=(4.0,), purpose="held-out")
    judged = surface([cell(1, 0, 1, 1.0), cell(1, 0, 5, 5.0), judge])
    assert [(held.predicted_ms, held.error) for held in judged.held_out()] == [(3.0, 0.25)]
    assert judged.latency(1, 0, 3).source == "interpolated"


def test_a_shape_beyond_one_that_failed_is_refused_where_nothing_as_large_ran() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=8, failure="out of memory")
    grid = [cell(1, c, n, 1.0) for c, n in ((0, 1), (0, 4), (100, 1), (100, 4))]
    with pytest.raises(MeasurementError, match="out of memory"):
        surface([*grid, failed]).latency(1, 50, 8)


def test_repeat_noise_is_that_of_the_sentinels_with_drift_taken_out() -> None:
    sentinel = Measurement(
        batch=1, context_tokens=0, tokens=1, repeats_ms=(2.0, 1.0, 1.1), drift=(2.0, 1.0, 1.0), purpose="sentinel"
    )
    assert surface([sentinel, cell(1, 0, 2, 1.0, 5.0, 9.0)]).repeat_noise() == pytest.approx((0.0, 0.0, 0.1))


@pytest.mark.parametrize(
    ("regime", "source"), [("estimated:eager", "estimated"), ("bound:eager", "bound"), ("imported:x", "imported")]
)
def test_what_was_not_measured_here_says_so_at_every_point(regime: str, source: str) -> None:
    made = LatencySurface(
        device="d", model="m", role="verify", regime=regime, dtype="float32", measurements=(cell(1, 0, 1, 1.0),)
    )
    assert made.latency(1, 0, 1).source == source


def test_padding_beyond_the_largest_measured_shape_raises() -> None:
    with pytest.raises(MeasurementError, match=r"tokens 1\.\.16"):
        of_cost(bilinear).padded(1, 0, 17)


def test_a_failed_shape_is_not_guessed_from_its_neighbours() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=2, failure="out of memory")
    with pytest.raises(MeasurementError, match="out of memory"):
        surface([cell(1, 0, 1, 1.0), failed, cell(1, 0, 4, 4.0)]).latency(1, 0, 2)


def test_padding_passes_over_a_failed_shape() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=2, failure="out of memory")
    padded = surface([cell(1, 0, 1, 1.0), failed, cell(1, 0, 4, 4.0)]).padded(1, 0, 2)
    assert padded.run_tokens.tolist() == [0, 1, 4]


def test_a_shape_that_failed_at_this_context_is_passed_over_though_it_ran_at_another() -> None:
    failed = Measurement(batch=1, context_tokens=50, tokens=2, failure="out of memory")
    ran = [cell(1, context, tokens, float(tokens)) for context in (0, 100) for tokens in (1, 2, 4)]
    assert surface([*ran, failed]).padded(1, 50, 2).run_tokens.tolist() == [0, 1, 4]


def test_a_cell_may_not_stand_twice() -> None:
    with pytest.raises(MeasurementError, match="twice"):
        surface([cell(1, 0, 1, 1.0), cell(1, 0, 1, 2.0)])


@pytest.mark.parametrize("cells", [[], [cell(1, 0, 1, 1.0)]])
def test_a_surface_without_cells_or_with_an_unknown_role_is_refused(cells: list[Measurement]) -> None:
    with pytest.raises(MeasurementError):
        surface(cells, role="other" if cells else "verify")


def test_the_relative_error_is_the_median_over_cells() -> None:
    cells = [cell(1, 0, 1, 1.0, 1.0, 1.0), cell(1, 0, 2, 9.0, 10.0, 11.0), cell(1, 0, 3, 1.0)]
    expected = math.sqrt(math.pi / 2) * 1.4826 * 1.0 / math.sqrt(3) / 10.0  # that of the middle cell
    assert surface(cells).relative_error() == pytest.approx(expected)


def test_a_surface_of_failures_has_no_error() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=2, failure="out of memory")
    with pytest.raises(MeasurementError, match="out of memory"):
        surface([failed]).relative_error()


def test_a_surface_of_failures_has_no_contexts_and_says_why() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=2, failure="out of memory")
    with pytest.raises(MeasurementError, match=r"\(verify of m, eager, float32\): out of memory; ask"):
        assert surface([failed]).full_contexts([1])


def test_the_drift_of_a_session_is_the_spread_of_its_calls_factors() -> None:
    cells = [
        Measurement(batch=1, context_tokens=10, tokens=n, repeats_ms=(1.0, 1.0), drift=(0.9, 1.1)) for n in (1, 2, 3)
    ]
    assert surface(cells).drift() == pytest.approx(0.1 * NORMAL_FROM_MAD)


def test_one_stalled_call_is_no_drift() -> None:
    steady = [
        Measurement(batch=1, context_tokens=10, tokens=n, repeats_ms=(1.0,) * 10, drift=(1.0,) * 10) for n in (1, 2, 3)
    ]
    stalled = Measurement(batch=1, context_tokens=10, tokens=4, repeats_ms=(1.0,), drift=(9.0,))
    assert surface([*steady, stalled]).drift() < 0.05


def test_a_surface_without_drift_says_0() -> None:
    assert surface([Measurement(batch=1, context_tokens=10, tokens=1, repeats_ms=(1.0,))]).drift() == 0.0
