"""A target that keeps hidden states runs all layers by one call: bit for bit what it is layer by layer."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest
import torch

from spectune.runtime.models.bits import bits
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.kv_cache import FeatureCache
from spectune.runtime.models.layout import Masks, chain_sight, lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import TappedModel

from ...support.fused_forward import tiny_lean
from ...support.torch_threads import threads_of

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16"),
]
CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}  # whole panels, so that all weights are ours
SLOTS, CAPACITY = 4, 32


def text_step(tokens: list[list[int]], contexts: list[int], *, take: list[int] | None, first_slot: int) -> ForwardInput:
    return lay_out(
        np.array(tokens), np.arange(len(tokens[0])), contexts, chain_sight(len(tokens[0])),
        dtype=torch.bfloat16, device=CPU, take=None if take is None else np.array(take), first_slot=first_slot,
    )  # fmt: skip


def tree_step() -> ForwardInput:
    tokens, parents, depths = np.array(
        [[[4, 5, 6, 7], [8, 9, 1, 0]], [[-1, 0, 0, 1], [-1, 0, 1, 0]], [[0, 1, 1, 2], [0, 1, 2, 1]]]
    )
    placed, masks = np.empty((3, 2, 4), dtype=np.int64), Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY)
    bias = masks.of_trees((tokens, parents, depths), 4, np.array([[4, 8], [5, 9]]), placed, 13)
    own, positions, columns = torch.from_numpy(placed)
    return ForwardInput(tokens=own, positions=positions, columns=columns, bias=bias, seen=13)


STEPS = {
    "a text": text_step([[3, 1, 4, 1, 5]], [0], take=None, first_slot=0),
    "texts' ends": text_step([[3, 1, 4], [2, 6, 5]], [4, 9], take=[2, 0], first_slot=1),
    "tokens behind texts as long": text_step([[7], [8], [9]], [6, 6, 6], take=None, first_slot=0),
    "tokens behind other texts": text_step([[7], [8], [9]], [6, 2, 11], take=None, first_slot=1),
    "trees": tree_step(),
}


def filled(target: TappedModel) -> FeatureCache:
    """Return a cache that holds anything."""
    cache, generator = target.new_cache(SLOTS, CAPACITY), torch.Generator().manual_seed(5)
    for part in (cache.states, cache.features):
        part.copy_(torch.randn(part.shape, generator=generator))
    return cache


def layer_by_layer(model: LeanModel) -> LeanModel:
    """Return the same model, whose layers no call runs together."""
    other = copy(model)
    other._stacked = None
    return other


@pytest.mark.thinned
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("after", [(0,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_forward_keeps_the_states_that_it_keeps_layer_by_layer(
    family: str, kind: str, after: tuple[int, ...], threads: int
) -> None:
    with threads_of(threads):
        model, step = tiny_lean(family, torch.bfloat16, CPU, **SIZES), STEPS[kind]
        at_once, apart = TappedModel(model, after), TappedModel(layer_by_layer(model), after)
        caches = [filled(target) for target in (at_once, apart)]
        assert at_once._at_once(step, caches[0]) is not None and apart._at_once(step, caches[1]) is None
        caches = [filled(target) for target in (at_once, apart)]
        found, expected = (target.forward(step, cache) for target, cache in zip((at_once, apart), caches, strict=True))
    assert np.array_equal(bits(found.contiguous()), bits(expected.contiguous()))
    assert torch.equal(caches[0].states, caches[1].states)
    assert torch.equal(caches[0].features, caches[1].features)
    assert not torch.equal(caches[0].features, filled(at_once).features)
