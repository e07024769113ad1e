"""Noise drawn by a kernel is the noise that is drawn everywhere."""

from __future__ import annotations

from itertools import product
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.runtime.models.kernels import gumbel as kernels
from spectune.runtime.models.kernels.gumbel import CHUNK, FEW_NODES, WARPS, noise_behind
from spectune.runtime.models.kernels.hashes import BELOW_ONE, GOLDEN, MULTIPLIER_1, MULTIPLIER_2, POSITION_STEP
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.sampling.noise import gumbel

from ....support.compiled_kernels import CAPABILITIES, compiled_for
from ....support.interpreted import launch

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")
SEEDS = torch.tensor([0, -1, 2**63 - 1, -(2**63), 123456789])


@pytest.mark.thinned
@pytest.mark.parametrize("vocabulary", [1, 24, CHUNK, 2 * CHUNK + 3])
@pytest.mark.parametrize("places", [1, 4])
def test_it_is_the_noise_of_the_host(places: int, vocabulary: int) -> None:
    first = torch.tensor([1, 7, 0, 2**40, 1000])
    found = drawn(SEEDS, torch.ones(5, dtype=torch.int64), first, places, vocabulary)
    expected = gumbel(SEEDS.unsqueeze(1), first.unsqueeze(1) + torch.arange(places), vocabulary)
    assert found.shape == (5, places, vocabulary) and found.dtype == torch.float32
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)  # logarithms differ in their last bit, at most
    assert (found == expected).float().mean() > 0.99 and len(found.unique()) > 0.99 * found.numel()


def test_a_row_that_is_not_sampled_has_none() -> None:
    found = drawn(SEEDS[:2], torch.tensor([0, 1]), torch.tensor([3, 3]), 2, 30)
    assert not found[0].any() and found[1].all()


def test_where_no_node_stands_nothing_is_drawn() -> None:
    """A place of the text at which no node of a row stands is left as it is."""
    depths = torch.tensor([[0, 1, 1, 3], [0, 2, 2, 2]])
    ones, first = torch.ones(2, dtype=torch.int64), torch.tensor([3, 9])
    noise = torch.full((2, 4, 30), 7.0)
    left = launch(draw_into, depths, SEEDS[:2], ones, first, noise)[-1]
    assert left is not None
    every = drawn(SEEDS[:2], ones, first, 4, 30)
    for row, place in product(range(2), range(4)):
        is_there = place in depths[row].tolist()
        assert torch.equal(left[row, place], every[row, place] if is_there else noise[row, place])


def draw_into(depths: Tensor, seeds: Tensor, is_sampled: Tensor, first: Tensor, noise: Tensor) -> None:
    with mock.patch.object(torch, "empty", return_value=noise):
        noise_behind(depths, seeds, is_sampled, first, places=noise.shape[1], vocabulary=noise.shape[2])


def drawn(seeds: Tensor, is_sampled: Tensor, first: Tensor, places: int, vocabulary: int) -> Tensor:
    depths = torch.arange(places).repeat(len(seeds), 2)
    found = launch(noise_behind, depths, seeds, is_sampled, first, places=places, vocabulary=vocabulary)[0]
    assert found is not None
    return found


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_it_compiles(capability: int) -> None:
    pointers = {"depths": "*i64", "seeds": "*i64", "is_sampled": "*i64", "first": "*i64", "noise": "*fp32"}
    numbers = {"golden": GOLDEN, "position_step": POSITION_STEP, "below_one": BELOW_ONE, "chunk": CHUNK}
    fixed = {**numbers, "padded": FEW_NODES, "multiplier_1": MULTIPLIER_1, "multiplier_2": MULTIPLIER_2}
    compiled_for(capability, kernels._draw, pointers, fixed, WARPS)
