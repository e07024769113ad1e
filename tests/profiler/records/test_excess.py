"""By how much the mean forward of a session is longer than its median one."""

from __future__ import annotations

import pytest

from spectune.profiler.records.excess import STALL, mean_over_median
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface


def surface(*cells: Measurement) -> LatencySurface:
    return LatencySurface(device="d", model="m", role="verify", regime="eager", dtype="float32", measurements=cells)


def cell(tokens: int, *repeats_ms: float) -> Measurement:
    return Measurement(batch=1, context_tokens=10, tokens=tokens, repeats_ms=repeats_ms)


def test_calls_that_all_take_as_long_have_no_excess() -> None:
    assert mean_over_median(surface(cell(1, *(2.0,) * 40), cell(8, *(5.0,) * 20))) == 1.0


def test_each_call_counts_beside_the_median_of_its_own_cell() -> None:
    quiet, disturbed = cell(1, *(2.0,) * 50), cell(8, *(5.0,) * 48, 10.0, 15.0)
    assert mean_over_median(surface(quiet, disturbed)) == pytest.approx((98 + 2 + 3) / 100)


def test_a_stall_counts_for_no_more_than_it_does_in_a_race() -> None:
    assert mean_over_median(surface(cell(1, *(1.0,) * 99, 700.0))) == pytest.approx((99 + STALL) / 100)


def test_the_drift_of_a_session_is_part_of_it() -> None:
    slow = Measurement(
        batch=1, context_tokens=10, tokens=1, repeats_ms=(1.0,) * 40 + (1.5,) * 20, drift=(1.0,) * 40 + (1.5,) * 20
    )
    assert mean_over_median(surface(slow)) == pytest.approx((40 + 30) / 60)


def test_few_calls_tell_nothing() -> None:
    stalled = (1.0, 1.0, 1.0, 1.0, 5.0)
    assert mean_over_median(surface(*(cell(n, *stalled) for n in range(1, 10)))) == 1.0  # 45 calls
    assert mean_over_median(surface(*(cell(n, 1.0, 5.0, 1.0) for n in range(1, 30)))) == 1.0  # 3 of each
    assert mean_over_median(surface(*(cell(n, *stalled) for n in range(1, 11))), 1.1) == pytest.approx(1.8)
    assert mean_over_median(surface(cell(1, *stalled)), 1.1) == 1.1  # what another one tells of the machine


def test_a_mean_is_never_taken_for_shorter_than_the_median() -> None:
    assert mean_over_median(surface(cell(1, *(1.0,) * 31, *(0.5,) * 29))) == 1.0


def test_cells_that_failed_are_passed_over() -> None:
    failed = Measurement(batch=1, context_tokens=10, tokens=64, failure="out of memory")
    assert mean_over_median(surface(failed, cell(1, *(1.0,) * 60))) == 1.0
