"""How far a device's pace strays: what devices of its kind did, until its own validations tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.plans.prediction import Prediction
from spectune.planner.pricing.cells import cells_of
from spectune.planner.pricing.pace import PRIOR, PRIOR_PACES, pace_error
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.promise import DRIFT, errors_of
from spectune.planner.search.search import solve

from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts


def told() -> PlanInputs:
    language = Language(3)
    return inputs(record(SkilledDrafter(language, 0.95), texts(language, 6, lambda text: 16), every_node(2, 3)))


def planned(*paces: float) -> PlanCell:
    given_paces = replace(told(), paces=paces)
    (cell,) = solve(
        given_paces,
        cells_of([1], [10]),
        created="2026-01-01T00:00:00Z",
        spectune="0.1",
        options=SearchOptions(trials=0),
    ).cells
    return cell


@pytest.mark.parametrize("kind", PRIOR)
def test_without_validations_it_is_that_of_the_kind(kind: str) -> None:
    assert pace_error(kind, ()) == pytest.approx(PRIOR[kind])


def test_as_many_validations_as_the_prior_stands_for_count_as_much() -> None:
    paces = (1.2, 1.0 / 1.2) * (PRIOR_PACES // 2)
    own = pace_error("cpu", paces * 10_000)
    assert pace_error("cpu", paces) ** 2 == pytest.approx((PRIOR["cpu"] ** 2 + own**2) / 2, rel=1e-3)


@given(some.floats(0.5, 2.0), some.sampled_from(sorted(PRIOR)))
def test_slower_and_faster_count_alike(pace: float, kind: str) -> None:
    assert pace_error(kind, [pace]) == pytest.approx(pace_error(kind, [1.0 / pace]))


def test_a_device_that_kept_its_pace_promises_more_closely_and_one_that_strayed_less() -> None:
    unknown, steady, stray = planned(), planned(*(1.0,) * 60), planned(*(0.6, 1.6) * 30)
    widths = [cell.prediction.high - cell.prediction.low for cell in (steady, unknown, stray)]
    assert widths == sorted(widths) and widths[0] < widths[2]
    assert stray.prediction.errors.drift > 0.4 > 0.1 > steady.prediction.errors.drift


def test_of_a_device_s_straying_a_speed_up_has_a_share_since_plain_decoding_strays_with_it() -> None:
    steady, stray = planned(*(1.0,) * 60).prediction, planned(*(0.6, 1.6) * 30).prediction
    speedups, speeds = (
        [margin(each, middle) for each in (steady, stray)] for middle in ("speedup_over_plain", "tokens_per_s")
    )
    own, errors = errors_of(replace(told(), paces=())), errors_of(replace(told(), paces=(0.6, 1.6) * 30))
    assert DRIFT < own.apart < errors.apart < errors.pace
    assert speedups[0] < speedups[1] < speeds[1] and speeds[0] < speeds[1]


def margin(prediction: Prediction, middle: str) -> float:
    """Return how far the upper end of an interval is from its middle, relatively."""
    high = prediction.high if middle == "tokens_per_s" else prediction.speedup_high
    return high / float(getattr(prediction, middle)) - 1.0


def test_devices_that_hardly_stray_err_by_their_sessions_drift_at_least() -> None:
    steady = errors_of(replace(told(), paces=(1.0,) * 10_000))
    assert steady.apart == steady.pace == DRIFT
