"""What compiled loops keep of scores is what torch keeps, by sorting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spectune.runtime.batch.sequence import Sampling
from spectune.runtime.sampling.filters import processed, with_min_p, with_top_k, with_top_p


def scores_of(*shape: int, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def kept(scores: Tensor, **asked: float) -> Tensor:
    """Return what a request with these settings keeps, of scores on the CPU in float32."""
    before = scores.clone()
    found = processed(scores, [Sampling(temperature=1.0, **asked)] * len(scores))  # type: ignore[arg-type]
    assert torch.equal(scores.nan_to_num(), before.nan_to_num()), "not changed"
    return found


def column(value: float, like: Tensor) -> Tensor:
    return torch.full((len(like), 1, 1), value)


@pytest.mark.parametrize("count", [1, 2, 5, 64, 10_000])
@pytest.mark.parametrize("width", [1, 3, 128, 1000])
def test_the_k_best_stay_and_what_equals_the_last(width: int, count: int) -> None:
    scores = scores_of(2, 2, width).round(decimals=1)
    assert torch.equal(kept(scores, top_k=count), with_top_k(scores, column(count, scores), count))


@pytest.mark.parametrize("probability", [0.999, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("width", [1, 2, 24, 128, 1000])
def test_the_fewest_best_that_hold_a_probability_stay(width: int, probability: float) -> None:
    scores = scores_of(2, 2, width)
    assert torch.equal(kept(scores, top_p=probability), with_top_p(scores, column(1 - probability, scores)))


@pytest.mark.parametrize("probability", [0.3, 0.5, 0.75, 0.9])
def test_of_equal_ones_the_last_stay(probability: float) -> None:
    scores = torch.zeros(1, 2, 64)
    scores[0, 1, ::3] = 1.0
    found = kept(scores, top_p=probability)
    assert torch.equal(found, with_top_p(scores, column(1 - probability, scores)))
    assert int((found[0, 0] > -math.inf).sum()) == math.ceil(64 * probability)


@pytest.mark.parametrize("share", [0.9, 0.1, 1e-3])
def test_what_has_a_share_of_the_best_stays(share: float) -> None:
    scores = scores_of(2, 3, 500)
    assert torch.equal(kept(scores, min_p=share), with_min_p(scores, column(share, scores)))


def test_masks_are_set_one_behind_the_other() -> None:
    scores = scores_of(2, 3, 300)
    expected = with_top_k(scores, column(40, scores), 40)
    expected = with_min_p(with_top_p(expected, column(1 - 0.8, scores)), column(0.05, scores))
    assert torch.equal(kept(scores, top_k=40, top_p=0.8, min_p=0.05), expected)


def test_the_best_always_stays_and_what_is_no_number_is_not_lost() -> None:
    scores = scores_of(1, 2, 40)
    assert (kept(scores, top_p=1e-6) > -math.inf).sum(-1).tolist() == [[1, 1]]
    scores[0, 0, 4] = math.nan
    assert kept(scores, top_p=0.5)[0, 0, 4].isnan() and kept(scores, top_k=2)[0, 0, 4].isnan()


def test_what_is_never_drawn_stays_so() -> None:
    scores = scores_of(1, 1, 60)
    scores[0, 0, ::2] = -math.inf
    found = kept(scores, top_p=0.9, min_p=0.01)
    assert (found[0, 0, ::2] == -math.inf).all() and (found > -math.inf).any()
