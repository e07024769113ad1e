"""What CAST asks of arrays, on numpy and on tensors: order, scan, survival."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.records.ops import NumpyOps
from spectune.planner.strategies.cast_growth import best_real, steepest, survivals
from spectune.profiler.records.calibration import SurvivalCurve
from spectune.runtime.growth.grow import TorchOps

from ...support.cost_curves import select_max_valid_index
from ...support.drawn_policies import curves

CPU = torch.device("cpu")
EIGHTHS = st.integers(-40, 40).map(lambda number: number / 8)  # exact, so that secants tie
SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.integers(1, 20))
def test_what_is_not_real_ranks_behind_all_that_is(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random((3, 20)) < 0.4, -np.inf, -rng.integers(0, 4, (3, 20))).astype(np.float32)
    is_real = rng.random((1, 20)) < 0.6
    ranks = np.where(is_real, np.minimum(-scores.astype(np.float64), 1e9), np.inf).tolist()
    expected = [sorted(range(20), key=lambda at: (row[at], at))[:count] for row in ranks]
    found = best_real(torch.from_numpy(scores), count, torch.from_numpy(is_real), TorchOps(3, CPU))
    assert found.tolist() == expected


@given(st.lists(st.tuples(EIGHTHS, EIGHTHS), min_size=1, max_size=40), st.sampled_from([0.0, 0.5, 1.0, 2.25]))
def test_the_scan_at_once_ends_where_the_scan_entry_by_entry_ends(
    entries: list[tuple[float, float]], threshold: float
) -> None:
    utilities, costs = map(list, zip(*entries, strict=True))
    gains, paid = np.array([utilities]), np.array([costs])
    tensors = torch.from_numpy(gains), torch.from_numpy(paid)
    for last in range(1, len(entries) + 1):
        expected = select_max_valid_index(utilities[: last + 1], costs[: last + 1], threshold)
        is_real = torch.arange(last)[None] >= 0  # as many candidates, beside the origin
        assert steepest(*tensors, threshold, is_real, TorchOps(1, CPU)).tolist() == [[expected]]
    whole = select_max_valid_index(utilities, costs, threshold)
    assert steepest(gains, paid, threshold, None, NumpyOps(1)) == whole
    assert steepest(*tensors, threshold, None, TorchOps(1, CPU)).tolist() == [[whole]]


@given(curves(), SEEDS)
def test_survival_is_the_curves_to_the_last_bit(curve: SurvivalCurve, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.concatenate((rng.uniform(-12, 1, 50), curve.log_probs, [0.0, -1e30])).astype(np.float32)[None]
    expected = curve.at(scores.astype(np.float64))
    assert np.array_equal(survivals((curve,), scores, 1, NumpyOps(1)), expected)
    found = survivals((curve,), torch.from_numpy(scores), 1, TorchOps(1, CPU))
    assert np.array_equal(found.numpy(), expected)


@given(curves())
def test_what_is_no_candidate_never_survives(curve: SurvivalCurve) -> None:
    nothing = np.full((1, 1), -np.inf, dtype=np.float32)
    assert survivals((curve,), nothing, 2, NumpyOps(1)).tolist() == [[0.0]]
    assert survivals((curve,), torch.from_numpy(nothing), 2, TorchOps(1, CPU)).tolist() == [[0.0]]
