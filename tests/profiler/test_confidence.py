"""Calibration of drafters whose true calibration is known in closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.confidence import (
    fit_calibration,
    reliability,
    step_reliability,
)
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.calibration import Calibration, Reliability, ReliabilityBin, SurvivalCurve
from spectune.profiler.records.wire import from_json, to_json
from spectune.profiler.scored_nodes import scored_nodes

from ..support.chain_traces import chain_prompt, chain_trace, trace_of


@cache
def honest() -> AcceptanceTrace:
    """Each step succeeds exactly as often as it says."""
    return chain_trace(lambda said: said)


@cache
def boastful() -> AcceptanceTrace:
    """Each step that says c succeeds with probability c * c, so a path that says p survives with p * p."""
    return chain_trace(np.square)


def test_an_honest_drafter_has_no_calibration_error() -> None:
    assert step_reliability(honest()).expected_error < 0.02


def test_the_error_of_a_boastful_drafters_steps_is_its_closed_form() -> None:
    # c even in [0.5, 1): E[c - c * c] = 3/4 - 7/12
    assert step_reliability(boastful()).expected_error == pytest.approx(1 / 6, abs=0.015)


def test_the_bins_of_a_boastful_drafter_lie_on_the_square() -> None:
    bins = [one for one in step_reliability(boastful(), bins=20).bins if one.count > 100]
    assert len(bins) > 5
    for one in bins:
        assert one.frequency == pytest.approx(one.confidence**2, abs=0.06)


def test_nodes_below_the_least_confidence_are_left_out() -> None:
    whole, upper = step_reliability(boastful()), step_reliability(boastful(), least=0.7)
    assert upper.bins == tuple(one for one in whole.bins if one.low >= 0.7)


def test_reliability_counts_by_hand() -> None:
    found = reliability(np.array([0.1, 0.3, 0.35, 1.0]), np.array([False, True, False, True]), bins=4)
    assert [(one.low, one.count, one.frequency) for one in found.bins] == [
        (0.0, 1, 0.0),
        (0.25, 2, 0.5),
        (0.75, 1, 1.0),
    ]
    assert found.bins[1].confidence == pytest.approx(0.325)
    assert found.expected_error == pytest.approx((0.1 + 2 * 0.175 + 0.0) / 4)


def test_nodes_beyond_the_end_of_the_text_are_not_judged() -> None:
    prompt = chain_prompt(lambda said: said, seed=0, positions=5, depth=3)
    nodes = scored_nodes(trace_of(prompt))
    assert sorted(nodes.depths.tolist()) == [1] * 5 + [2] * 4 + [3] * 3


def test_path_scores_are_the_sums_of_their_steps() -> None:
    prompt = chain_prompt(lambda said: said, seed=0, positions=1, depth=1)
    whole = chain_prompt(lambda said: said, seed=0, positions=9, depth=3)
    nodes = scored_nodes(trace_of(whole))
    steps = whole.log_probs.reshape(9, 3).astype(np.float64)
    wanted = [steps[t, : depth + 1].sum() for t in range(9) for depth in range(min(3, 9 - t))]
    assert nodes.path_log_probs.tolist() == pytest.approx(wanted, abs=1e-6)
    assert scored_nodes(trace_of(prompt)).path_log_probs.tolist() == prompt.log_probs.ravel().tolist()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_calibrated_survival_is_the_closed_form_at_every_depth(depth: int) -> None:
    log_probs = np.linspace(depth * np.log(0.6), depth * np.log(0.95), 9)
    fitted = fit_calibration(boastful()).survival(depth, log_probs)
    np.testing.assert_allclose(fitted, np.exp(2 * log_probs), atol=0.08)
    assert np.abs(fitted - np.exp(2 * log_probs)).mean() < 0.035


def pooled(values: list[float], index: int) -> float:
    """Isotonic regression by its max-min formula: slow, obvious, and shares no code with the fit."""
    means = [
        min(sum(values[a : b + 1]) / (b + 1 - a) for b in range(index, len(values))) for a in range(index + 1)
    ]  # fmt: skip
    return max(means)


def test_the_fit_is_the_isotonic_regression_of_hits() -> None:
    prompt = chain_prompt(lambda said: said**3, seed=4, positions=40, depth=1)
    curve = fit_calibration(trace_of(prompt))
    order = np.argsort(prompt.log_probs[:, 0])
    values = (prompt.hit_rank[order] == 0).astype(float).tolist()
    found = curve.survival(1, prompt.log_probs[order, 0].astype(np.float64))
    assert found.tolist() == pytest.approx([pooled(values, index) for index in range(40)])


def test_survival_never_falls_with_confidence_and_is_level_beyond_what_was_seen() -> None:
    calibration = fit_calibration(boastful())
    for depth in (1, 2, 3, 9):
        survival = calibration.survival(depth, np.linspace(-9.0, 0.0, 400))
        assert (np.diff(survival) >= 0).all() and survival[0] >= 0.0 and survival[-1] <= 1.0
        assert survival[0] == calibration.survival(depth, np.array([-1e9]))[0]


def test_a_node_that_cannot_be_drafted_cannot_survive() -> None:
    assert fit_calibration(honest()).survival(1, np.array([-np.inf])).tolist() == [0.0]


def test_depths_without_hits_enough_share_one_curve() -> None:
    rare = chain_trace(lambda said: np.full_like(said, 0.2), prompts=10)  # 400 hits at depth 1, 80 at 2, 16 at 3
    calibration = fit_calibration(rare)
    assert len(calibration.curves) == 2
    deep = np.array([-2.0, -1.0])
    assert calibration.survival(2, deep).tolist() == calibration.survival(7, deep).tolist()


def test_a_calibration_learnt_on_some_prompts_ignores_the_rest() -> None:
    prompts = boastful().prompts
    assert fit_calibration(boastful(), [0, 1, 2]) == fit_calibration(replace(boastful(), prompts=prompts[:3]))


def test_a_calibration_comes_back_from_json_equal() -> None:
    calibration = fit_calibration(boastful())
    assert from_json(Calibration, to_json(calibration)) == calibration


def test_impossible_records_are_refused() -> None:
    curve = SurvivalCurve(log_probs=(-2.0, -1.0), survivals=(0.1, 0.4), nodes=3)
    one = ReliabilityBin(low=0.0, high=0.5, count=1, confidence=0.2, frequency=0.3)
    for record, change in (
        (curve, {"log_probs": (-1.0, -2.0)}),
        (curve, {"survivals": (0.4, 0.1)}),
        (curve, {"survivals": (0.4, 1.1)}),
        (curve, {"log_probs": (-np.inf, 0.0)}),
        (curve, {"nodes": 0}),
        (one, {"count": 0}),
        (one, {"low": 0.5}),
        (one, {"frequency": 1.5}),
        (Reliability(bins=(one,)), {"bins": ()}),
        (Reliability(bins=(one,)), {"bins": (one, one)}),
        (fit_calibration(honest()), {"curves": ()}),
    ):
        with pytest.raises(MeasurementError):
            replace(record, **change)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(MeasurementError):
        reliability(np.array([1.2]), np.array([True]))
    with pytest.raises(MeasurementError):
        reliability(np.array([]), np.array([], dtype=np.bool_))
    with pytest.raises(MeasurementError):
        fit_calibration(honest(), [])
    with pytest.raises(MeasurementError):
        fit_calibration(honest()).survival(0, np.array([-1.0]))
