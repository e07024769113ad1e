"""Draws: the noise is Gumbel noise, independent over positions, seeds and tokens, and its law is softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.sampling.noise import gumbel, open_unit
from spectune.runtime.sampling.sampler import draw

SEEDS = torch.arange(2000).unsqueeze(1)
NOISE = gumbel(SEEDS, torch.arange(20), 8).double().numpy()  # (seeds, positions, tokens)


def sequence(seed: int, *, length: int = 3, temperature: float = 0.7, **sampling: float) -> Sequence:
    sampling["temperature"] = temperature
    return Sequence(Request(prompt=(1,) * length, max_new_tokens=9, seed=seed, **sampling), 0)  # type: ignore[arg-type]


def test_the_noise_has_the_gumbel_distribution() -> None:
    assert stats.kstest(NOISE.ravel(), "gumbel_r").pvalue > 1e-3


def test_mean_and_variance_are_gumbels() -> None:
    assert np.mean(NOISE) == pytest.approx(np.euler_gamma, abs=0.01)
    assert np.var(NOISE) == pytest.approx(np.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "positions", "tokens"])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_noise_does_not_correlate_along(axis: int, step: int) -> None:
    """|r| of n independent pairs is below 4 / sqrt(n) but once in 16,000."""
    count = NOISE.shape[axis]
    here, there = NOISE.take(range(count - step), axis).ravel(), NOISE.take(range(step, count), axis).ravel()
    assert abs(stats.pearsonr(here, there)[0]) < 4 / np.sqrt(here.size)


def test_seed_and_position_are_not_mixed_up() -> None:
    """Noise of (seed s, position p + 1) is not that of (seed s + 1, position p)."""
    assert abs(stats.pearsonr(NOISE[:-1, 1:].ravel(), NOISE[1:, :-1].ravel())[0]) < 4 / np.sqrt(1999 * 19 * 8)


def test_noise_is_a_function_of_seed_and_position_alone() -> None:
    again = gumbel(torch.tensor([7]), torch.tensor([5]), 8)
    assert np.array_equal(again[0].double().numpy(), NOISE[7, 5])


def test_a_larger_vocabulary_keeps_the_noise_of_the_first_tokens() -> None:
    seeds, positions = torch.tensor([7]), torch.tensor([5])
    assert torch.equal(gumbel(seeds, positions, 100)[:, :8], gumbel(seeds, positions, 8))


def test_draws_over_seeds_follow_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5, 2.0, -3.0]).expand(20_000, 1, 6)
    drawn = draw(logits, [sequence(seed) for seed in range(20_000)], np.zeros((20_000, 1), dtype=np.int64))
    expected = torch.softmax(logits[0, 0].double() / 0.7, -1).numpy() * 20_000
    assert stats.chisquare(np.bincount(np.ravel(drawn), minlength=6), expected).pvalue > 1e-3


def test_draws_along_one_text_follow_the_softmax() -> None:
    depths = np.arange(20_000)[None]
    drawn = draw(torch.tensor([1.0, 0.0, -1.0]).expand(1, 20_000, 3), [sequence(5)], depths)
    expected = torch.softmax(torch.tensor([1.0, 0.0, -1.0]).double() / 0.7, -1).numpy() * 20_000
    assert stats.chisquare(np.bincount(np.ravel(drawn), minlength=3), expected).pvalue > 1e-3


def test_precision_of_the_logits_does_not_change_the_noise() -> None:
    logits = torch.randint(-3, 4, (4, 5, 9), generator=torch.Generator().manual_seed(0)).float()  # exact in all
    depths = np.tile(np.arange(5), (4, 1))
    sequences = [sequence(seed) for seed in range(4)]
    drawn = [draw(logits.to(dtype), sequences, depths) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    assert drawn[0] == drawn[1] == drawn[2]


def test_the_place_in_the_text_keys_the_noise_not_the_depth() -> None:
    logits, root = torch.zeros(1, 1, 50), np.zeros((1, 1), dtype=np.int64)
    near = [draw(logits, [sequence(3, length=4)], root + depth)[0][0] for depth in range(1, 9)]
    far = [draw(logits, [sequence(3, length=4 + depth)], root)[0][0] for depth in range(1, 9)]
    assert near == far and len(set(near)) > 1


def test_nodes_of_one_depth_share_their_noise() -> None:
    drawn = draw(torch.zeros(1, 3, 50), [sequence(3)], np.array([[1, 1, 1]]))
    assert len(set(drawn[0])) == 1


def test_temperature_zero_takes_the_largest_logit_also_beside_sampled_rows() -> None:
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0))
    sequences = [sequence(0, temperature=0.0), sequence(1, temperature=5.0), sequence(2, temperature=0.0)]
    drawn = draw(logits, sequences, np.tile(np.arange(4), (3, 1)))
    assert [drawn[0], drawn[2]] == logits[[0, 2]].argmax(-1).tolist()


def test_a_row_is_drawn_alike_alone_and_in_a_batch() -> None:
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0))
    depths = np.array([[0, 1, 1, 2], [0, 1, 2, 3], [0, 1, 0, 0]])
    sequences = [sequence(seed, temperature=0.5 + seed, length=1 + seed) for seed in range(3)]
    alone = [draw(logits[row : row + 1], sequences[row : row + 1], depths[row : row + 1])[0] for row in range(3)]
    assert draw(logits, sequences, depths) == alone


def test_drawing_leaves_the_logits_alone() -> None:
    logits = torch.zeros(1, 1, 50)
    draw(logits, [sequence(3)], np.zeros((1, 1), dtype=np.int64))
    assert not logits.any()


def test_all_bits_set_is_below_one_and_none_set_is_above_zero() -> None:
    least, most = open_unit(torch.tensor([0, -1])).tolist()
    assert 0.0 < least < most < 1.0


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.4}])
def test_what_is_masked_is_never_drawn_and_all_else_is(sampling: dict[str, Any]) -> None:
    logits = torch.tensor([2.0, 1.9, 1.8, 0.7, 0.6, 0.5, -1.0]).expand(3000, 1, 7)
    drawn = draw(logits, [sequence(seed, **sampling) for seed in range(3000)], np.zeros((3000, 1), dtype=np.int64))
    assert set(np.ravel(drawn)) in ({0, 1}, {0, 1, 2})


def test_draws_behind_masks_follow_the_softmax_of_what_is_left() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5, 2.0, -3.0]).expand(20_000, 1, 6)
    sequences = [sequence(seed, top_k=3) for seed in range(20_000)]
    drawn = np.ravel(draw(logits, sequences, np.zeros((20_000, 1), dtype=np.int64)))
    expected = torch.softmax(torch.tensor([1.0, 0.5, 2.0]).double() / 0.7, -1).numpy() * 20_000
    assert stats.chisquare(np.bincount(drawn, minlength=6)[[0, 3, 4]], expected).pvalue > 1e-3


def test_a_greedy_row_with_a_penalty_takes_the_best_penalised_logit() -> None:
    logits = torch.tensor([[[0.0, 4.0, 3.0], [-4.0, -3.0, -3.5]]])  # token 1 stands in the text
    greedy = sequence(0, temperature=0.0, repetition_penalty=2.0)
    assert draw(logits, [greedy], np.array([[0, 1]])) == [[2, 2]]


def test_a_seed_draws_the_same_number_with_and_without_settings_that_mask_nothing() -> None:
    logits = torch.randn(1, 20, 50, generator=torch.Generator().manual_seed(0))
    depths = np.arange(20)[None]
    loose = sequence(3, top_k=50, top_p=1 - 1e-9, min_p=1e-12)
    assert draw(logits, [loose], depths) == draw(logits, [sequence(3)], depths)


def test_float64_logits_are_compared_as_float64_beside_sampled_rows() -> None:
    logits = torch.zeros(2, 1, 3, dtype=torch.float64)
    logits[0, 0, 2] = 1e-12
    drawn = draw(logits, [sequence(0, temperature=0.0), sequence(1)], np.zeros((2, 1), dtype=np.int64))
    assert drawn[0] == [2]
