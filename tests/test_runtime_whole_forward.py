"""Forwards by one compiled call are, bit for bit, what they are step by step, and go that way only where they may."""

from __future__ import annotations

import gc
from copy import copy
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch

from spectune.planner.growth.draft import DraftBatch
from spectune.planner.policies import LookupPolicy
from spectune.runtime.cache import KeyValueCache
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.fed_trees import FedTrees
from spectune.runtime.layout import Masks, chain_sight, lay_out
from spectune.runtime.models.bits import KNOWN, bits, bits_for_kernels
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.requests import Request, Sequence
from spectune.runtime.setup import RoundSetup, always

from .decoded_runs import plain_in_two_threads, random_requests, run
from .fused_forward import tiny_lean
from .tiny_exits import exit_weights, tiny_exit
from .torch_threads import threads_of

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16"),
]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}  # whole panels, so that all weights are ours
SLOTS, CAPACITY = 4, 32


def step_by_step(model: LeanModel) -> LeanModel:
    """Return the same model, whose forwards are not whole."""
    other = copy(model)
    other._whole = None
    return other


def text_step(tokens: list[list[int]], contexts: list[int], *, take: list[int] | None, first_slot: int) -> ForwardInput:
    return lay_out(
        np.array(tokens), np.arange(len(tokens[0])), contexts, chain_sight(len(tokens[0])),
        dtype=torch.bfloat16, device=CPU, take=None if take is None else np.array(take), first_slot=first_slot,
    )  # fmt: skip


STEPS = {
    "a text": text_step([[3, 1, 4, 1, 5]], [0], take=None, first_slot=0),
    "a text's end": text_step([[3, 1, 4, 1, 5]], [0], take=[3], first_slot=2),
    "texts' ends": text_step([[3, 1, 4], [2, 6, 5]], [4, 9], take=[2, 0], first_slot=1),
    "a token": text_step([[7]], [12], take=None, first_slot=0),
    "tokens behind texts as long": text_step([[7], [8], [9]], [6, 6, 6], take=None, first_slot=0),
    "tokens behind other texts": text_step([[7], [8], [9]], [6, 2, 11], take=None, first_slot=1),
}


def tree_step(masks: Masks) -> ForwardInput:
    tokens, parents, depths = np.array(
        [[[4, 5, 6, 7], [8, 9, 1, 0]], [[-1, 0, 0, 1], [-1, 0, 1, 0]], [[0, 1, 1, 2], [0, 1, 2, 1]]]
    )
    assert masks.places is not None
    placed, (own, positions, columns) = masks.places.of(2, 4)
    bias = masks.of_trees((tokens, parents, depths), 4, np.array([[4, 8], [5, 9]]), placed, 13)
    return ForwardInput(tokens=own, positions=positions, columns=columns, bias=bias, seen=13, numbers=placed)


def filled(model: LeanModel) -> torch.Tensor:
    states = model.new_cache(SLOTS, CAPACITY).states
    generator = torch.Generator().manual_seed(5)
    return torch.randn(states.shape, generator=generator).bfloat16()


def assert_same(model: LeanModel, step: ForwardInput) -> None:
    whole, apart = (one.new_cache(SLOTS, CAPACITY) for one in (model, model))
    for cache in (whole, apart):
        cache.states.copy_(filled(model))
    found, expected = model.forward(step, whole), step_by_step(model).forward(step, apart)
    assert KNOWN in vars(found) and KNOWN not in vars(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert np.array_equal(bits(found), bits(expected.contiguous()))
    assert np.array_equal(bits(whole.states), bits(apart.states))
    known = bits_for_kernels(found)
    assert known is not None and np.array_equal(known, bits(found))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [*STEPS, "trees"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_bit_by_bit_what_it_is_step_by_step(family: str, kind: str, count: int) -> None:
    with threads_of(count):
        model = bfloat16_lean(family)
        assert model._whole is not None
        step = tree_step(Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY)) if kind == "trees" else STEPS[kind]
        assert_same(model, step)


@pytest.mark.parametrize("fed", [4, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_that_it_lays_out_itself_are_those_that_are_laid_out(family: str, fed: int) -> None:
    model, masks = bfloat16_lean(family), Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY)
    tokens, parents, depths = np.array(
        [[[-1, 5, 6, 7], [-1, 9, -1, -1]], [[-1, 0, 0, 1], [-1, 0, 0, 0]], [[0, 1, 1, 2], [0, 1, 1, 1]]]
    )
    draft = DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=np.array([4, 2]), widths=())
    batch = [
        Sequence(Request(prompt=prompt, max_new_tokens=9), place)
        for place, prompt in enumerate([(1, 2, 3), (4, 5) * 4])
    ]
    trees = FedTrees(batch, draft, fed)
    assert_same(model, trees.laid_out(masks))
    laid_out, waiting = trees.laid_out(masks), trees.laid_out(masks, may_wait=True)
    assert model.lays_out_trees and waiting.trees is not None and laid_out.trees is None
    caches = [model.new_cache(SLOTS, CAPACITY) for _ in range(3)]
    for cache in caches:
        cache.states.copy_(filled(model))
    waited, found, apart = (
        one.forward(step, cache)
        for one, step, cache in zip(
            (model, model, step_by_step(model)), (waiting, laid_out, waiting), caches, strict=True
        )
    )
    for other, cache in ((found, caches[1]), (apart, caches[2])):
        assert np.array_equal(bits(waited), bits(other.contiguous())) and torch.equal(caches[0].states, cache.states)


def test_rounds_leave_it_to_the_model_to_lay_trees_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = bfloat16_lean("llama"), list[bool]()
    forward = model.forward

    def noted(step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        seen.append(step.trees is not None)
        return forward(step, cache)

    monkeypatch.setattr(model, "forward", noted)
    setup = RoundSetup(policy=LookupPolicy(length=3), drafter="lookup")
    requests = random_requests(4, tokens=30)
    found = run(model, requests, always(setup), {"lookup": LookupDrafter()}, slots=2)
    assert any(seen) and found.outputs == run(step_by_step(bfloat16_lean("llama")), requests).outputs


def bfloat16_lean(family: str) -> LeanModel:
    return tiny_lean(family, torch.bfloat16, CPU, **SIZES)


def test_a_mask_that_all_rows_have_is_read_once() -> None:
    model, step = bfloat16_lean("llama"), text_step([[3, 1, 4], [2, 6, 5]], [4, 4], take=None, first_slot=0)
    assert step.bias is not None
    assert_same(model, replace(step, bias=step.bias[:1].expand(2, -1, -1)))


def test_another_cache_is_another_memory() -> None:
    model, step = bfloat16_lean("llama"), STEPS["a token"]
    caches = [model.new_cache(SLOTS, CAPACITY) for _ in range(2)]
    caches[1].states.copy_(filled(model))
    first, second, again = (model.forward(step, caches[place]) for place in (0, 1, 0))
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_a_longer_text_than_the_table_of_places_is_read_at_its_end() -> None:
    model = bfloat16_lean("llama")
    places = len(model.anatomy.sights[0].turns)
    far = text_step([[7]], [places + 3], take=None, first_slot=0)
    at_end = ForwardInput(
        tokens=far.tokens, positions=far.positions.clamp(max=places - 1), columns=far.columns, bias=None, seen=far.seen
    )
    logits = []
    for step in (far, at_end):
        cache = model.new_cache(1, places + 8)
        logits.append(model.forward(step, cache))
    assert torch.equal(*logits)


@pytest.mark.parametrize("is_below", [False, True])
def test_an_unknown_token_is_refused_as_ever_and_nothing_is_written(is_below: bool) -> None:
    model = bfloat16_lean("llama")
    token = -1 if is_below else model.vocabulary
    cache = model.new_cache(1, CAPACITY)
    with pytest.raises(IndexError):
        model.forward(text_step([[3, token, 4]], [0], take=None, first_slot=0), cache)
    assert not cache.states.any()


def test_an_exit_has_whole_forwards_of_its_own_layers() -> None:
    model = bfloat16_lean("llama")
    exit_ = model.prefix(1)
    assert exit_._whole is not None and exit_._whole is not model._whole
    cache, apart = (model.new_cache(SLOTS, CAPACITY).first(1) for _ in range(2))
    found, expected = exit_.forward(STEPS["a text"], cache), step_by_step(exit_).forward(STEPS["a text"], apart)
    assert KNOWN in vars(found) and torch.equal(found, expected) and torch.equal(cache.states, apart.states)


def test_a_model_that_answers_in_its_own_way_is_not_answered_for() -> None:
    target, step = bfloat16_lean("llama"), STEPS["a text"]
    weights = {name: part.bfloat16() for name, part in exit_weights(64).items()}
    own = tiny_exit(target, weights, 1)
    found = own.forward(step, own.new_cache(1, 8))
    left = torch.zeros(5, target.hidden, dtype=torch.bfloat16)
    assert own._whole is None
    assert torch.equal(found, own.forward_leaving(step, own.new_cache(1, 8), left))
    assert not torch.equal(found, target.prefix(1).forward(step, own.new_cache(1, 8)))


def test_two_threads_decode_over_caches_of_their_own() -> None:
    requests = random_requests(6, tokens=40)
    with threads_of(2):
        model = bfloat16_lean("llama")
        alone = run(model, requests).outputs
        assert model._whole is not None and plain_in_two_threads(model, requests) == [alone, alone]


def test_a_cache_is_let_go_of() -> None:
    model = bfloat16_lean("llama")
    cache = model.new_cache(1, CAPACITY)
    model.forward(text_step([[3, 1, 4]], [0], take=None, first_slot=0), cache)
    numbers = ref(vars(cache.states)[KNOWN])
    del cache
    gc.collect()
    assert numbers() is None


def test_a_token_that_is_not_there_cannot_be_wanted() -> None:
    model, step = bfloat16_lean("llama"), STEPS["texts' ends"]
    beyond = replace(step, take=torch.tensor([2, 3]))
    with pytest.raises(IndexError):
        model.forward(beyond, model.new_cache(SLOTS, CAPACITY))


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3"])
def test_what_kernels_do_not_take_whole_is_not_tried(family: str) -> None:
    assert bfloat16_lean(family)._whole is None
