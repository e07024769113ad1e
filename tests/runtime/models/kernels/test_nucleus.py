"""What a kernel keeps by top-p is what sorting keeps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spectune.runtime.models.kernels import nucleus
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.kernels.nucleus import TILE, WARPS, nucleus_of
from spectune.runtime.sampling.filters import with_top_p

from ....support.compiled_kernels import CAPABILITIES, compiled_for
from ....support.interpreted import launch

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")


def scores_of(*shape: int, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def kept_of(scores: Tensor, probability: float) -> Tensor:
    left_out = torch.full((len(scores), 1, 1), 1 - probability)
    found = launch(nucleus_of, scores, left_out)[0]
    assert found is not None and found.dtype == torch.float32 and found.shape == scores.shape
    return found


def assert_kept(scores: Tensor, probability: float) -> None:
    expected = with_top_p(scores, torch.full((len(scores), 1, 1), 1 - probability))
    found = kept_of(scores, probability)
    assert torch.equal(found, expected), f"{(found > -math.inf).sum()} of {(expected > -math.inf).sum()}"


@pytest.mark.thinned
@pytest.mark.parametrize("probability", [0.999, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("width", [1, 2, 24, TILE, TILE + 3])
def test_the_fewest_best_that_hold_a_probability_are_kept(width: int, probability: float) -> None:
    assert_kept(scores_of(2, 2, width), probability)


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_scores_far_from_zero_are_no_others(shift: float) -> None:
    assert_kept(scores_of(1, 3, 50) + shift, 0.8)


@pytest.mark.parametrize("probability", [0.3, 0.5, 0.75, 0.9])
def test_of_equal_ones_the_last_are_kept(probability: float) -> None:
    scores = torch.zeros(1, 2, 64)
    scores[0, 1, ::3] = 1.0
    assert_kept(scores, probability)
    assert 1 <= int((kept_of(scores, probability)[0, 0] > -math.inf).sum()) == math.ceil(64 * probability)


def test_equal_ones_may_lie_far_apart() -> None:
    scores = torch.full((1, 1, 2 * TILE), -50.0)
    scores[0, 0, [3, 5, TILE - 1, TILE, 2 * TILE - 1]] = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0])
    found = kept_of(scores, 0.8)[0, 0]  # 2 holds 0.40 of it, each 1 holds 0.15
    assert (found > -math.inf).nonzero().flatten().tolist() == [5, TILE - 1, TILE, 2 * TILE - 1]


def test_what_is_masked_already_stays_so_and_the_best_always_stays() -> None:
    scores = scores_of(1, 2, 40)
    scores[:, :, ::2] = -math.inf
    scores[0, 1, 1:] = -math.inf
    scores[0, 1, 7] = 0.5
    assert_kept(scores, 0.9)
    assert_kept(scores, 1e-6)
    assert (kept_of(scores, 1e-6)[0, 1] > -math.inf).nonzero().tolist() == [[7]]


def test_rows_that_leave_nothing_out_stay_as_they_are() -> None:
    scores, left_out = scores_of(2, 2, 30), torch.tensor([0.0, 0.4]).view(2, 1, 1)
    found = launch(nucleus_of, scores, left_out)[0]
    assert found is not None and torch.equal(found[0], scores[0])
    assert torch.equal(found[1:], with_top_p(scores[1:], left_out[1:]))


def test_what_is_no_number_stays() -> None:
    scores = scores_of(1, 1, 30)
    scores[0, 0, 4] = math.nan
    assert kept_of(scores, 0.5)[0, 0, 4].isnan()


def test_a_large_vocabulary_keeps_what_sorting_keeps_but_for_rounding() -> None:
    scores = scores_of(1, 1, 12_000, spread=2.0)
    counts = [
        int((kept > -math.inf).sum()) for kept in (kept_of(scores, 0.9), with_top_p(scores, torch.full((1, 1, 1), 0.1)))
    ]
    assert counts[0] == pytest.approx(counts[1], abs=3) and counts[1] > 500


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_it_compiles(capability: int) -> None:
    pointers = dict.fromkeys(("scores", "left_out", "kept"), "*fp32")
    compiled_for(capability, nucleus._keep_best, pointers, {"tile": TILE}, WARPS)
