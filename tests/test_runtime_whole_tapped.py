"""A target that keeps hidden states for heads forwards and verifies by one call, too: bit for bit as layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spectune.runtime.committed import accepted
from spectune.runtime.draws import best_tokens
from spectune.runtime.feature_cache import FeatureCache
from spectune.runtime.fed_trees import FedTrees
from spectune.runtime.layout import Masks
from spectune.runtime.models.bits import bits
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import TappedModel
from spectune.runtime.requests import Request, Sequence

from .test_runtime_whole_forward import (
    CAPACITY,
    CPU,
    FAMILIES,
    SLOTS,
    STEPS,
    answering,
    bfloat16_lean,
    drafted,
    step_by_step,
    tree_step,
)
from .torch_threads import threads_of

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16"),
]
AFTER = [(0,), (1, 2), (0, 1, 2)]


def filled(target: TappedModel) -> FeatureCache:
    """Return a cache that holds anything."""
    cache = target.new_cache(SLOTS, CAPACITY)
    generator = torch.Generator().manual_seed(5)
    for part in (cache.states, cache.features):
        part.copy_(torch.randn(part.shape, generator=generator))
    return cache


def pair(family: str, after: tuple[int, ...]) -> tuple[TappedModel, TappedModel, LeanModel]:
    """Return a target that keeps states by one call, one of its weights that does layer by layer, and its model."""
    model = bfloat16_lean(family)
    assert model.whole is not None
    return TappedModel(model, after), TappedModel(step_by_step(model), after), model


@pytest.mark.parametrize(
    ("family", "after", "kind", "threads"),
    [
        *((family, (0, 1, 2), kind, 1) for family in FAMILIES for kind in (*STEPS, "trees")),
        *(
            ("llama", after, kind, threads)
            for after in AFTER
            for kind in ("texts' ends", "trees")
            for threads in (1, 2)
        ),
    ],
)
def test_a_forward_keeps_the_states_that_it_keeps_layer_by_layer(
    family: str, after: tuple[int, ...], kind: str, threads: int
) -> None:
    with threads_of(threads):
        whole, apart, model = pair(family, after)
        step = tree_step(Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY)) if kind == "trees" else STEPS[kind]
        caches = [filled(target) for target in (whole, apart)]
        found, expected = (target.forward(step, cache) for target, cache in zip((whole, apart), caches, strict=True))
        plain = model.forward(step, model.new_cache(SLOTS, CAPACITY)) if kind == "a text" else found
    assert found.shape == expected.shape and np.array_equal(bits(found.contiguous()), bits(expected.contiguous()))
    assert torch.equal(found, plain)
    assert torch.equal(caches[0].states, caches[1].states)
    assert torch.equal(caches[0].features, caches[1].features)
    assert not torch.equal(caches[0].features, filled(whole).features)


@pytest.mark.parametrize(("sizes", "fed"), [([4, 2], 4), ([3, 3], 6), ([1, 1], 1)])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_states_of_what_a_greedy_round_accepts_are_moved_together_with_its_keys(
    after: tuple[int, ...], sizes: list[int], fed: int
) -> None:
    whole, apart, model = pair("llama", after)
    answering(model, {1: 6, 6: 7, 7: 2, 2: 9, 9: 4})
    prompts = [(3, 3, 1), (4,) * 7 + (2,)]
    batch = [Sequence(Request(prompt=prompt, max_new_tokens=9), place) for place, prompt in enumerate(prompts)]
    draft = drafted(sizes)
    trees = FedTrees(batch, draft, fed)
    here, there = filled(whole), filled(apart)
    assert whole.can_verify(here) and not apart.can_verify(there)
    drawn = whole.verified(trees.unlaid, here)
    step = trees.laid_out(Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY))
    stands = accepted(batch, draft, best_tokens(apart.forward(step, there)))
    there.keep(stands.moves(batch))
    assert drawn is not None
    assert [row[1 : 1 + row[0]] for row in drawn.tolist()] == [path.drawn for path in stands.paths]
    assert max(len(path.drawn) for path in stands.paths) == {4: 3, 3: 2, 1: 1}[max(sizes)]
    for row, path in enumerate(stands.paths):  # behind these anything may stand
        end = batch[row].context + len(path.nodes)
        assert torch.equal(here.states[:, row, :end], there.states[:, row, :end])
        assert torch.equal(here.features[row, :end], there.features[row, :end])
    assert torch.equal(here.features[2:], there.features[2:])


def test_a_cache_that_keeps_nothing_else_is_another_model_s() -> None:
    whole, _, model = pair("llama", (1,))
    assert not whole.can_verify(model.new_cache(1, CAPACITY))
    batch = [Sequence(Request(prompt=(3, 1), max_new_tokens=9), 0)]
    assert whole.verified(FedTrees(batch, drafted([1, 1]), 1).unlaid, model.new_cache(1, CAPACITY)) is None


def test_a_model_that_forwards_in_its_own_way_is_asked_layer_by_layer() -> None:
    class OfItsOwnWay(LeanModel):
        def forward(self, step: object, cache: object) -> torch.Tensor:
            raise NotImplementedError

    own = TappedModel(OfItsOwnWay(bfloat16_lean("llama").anatomy), (1,))
    assert not own.can_verify(own.new_cache(1, CAPACITY))
