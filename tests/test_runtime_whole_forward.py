"""Forwards by one compiled call are, bit for bit, what they are step by step, and go that way only where they may."""

from __future__ import annotations

import gc
from copy import copy
from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

from spectune.planner.growth.draft import DraftBatch
from spectune.planner.kernels.arrays import Ints
from spectune.planner.policies import LookupPolicy
from spectune.runtime.cache import KeyValueCache
from spectune.runtime.committed import accepted
from spectune.runtime.drafters.lookup import LookupDrafter, roots_of
from spectune.runtime.draws import best_tokens
from spectune.runtime.fed_trees import FedTrees
from spectune.runtime.layout import Masks, chain_sight, lay_out
from spectune.runtime.models.bfloat16 import BFloat16Product
from spectune.runtime.models.bits import KNOWN, bits, bits_for_kernels
from spectune.runtime.models.forward import ForwardInput, UnlaidTrees
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


def drafted(sizes: list[int]) -> DraftBatch:
    """Return two trees of at most four nodes, in which the newest node of a path need not be the next in line."""
    tokens, parents, depths = np.array(
        [[[-1, 5, 6, 7], [-1, 9, 3, -1]], [[-1, 0, 0, 2], [-1, 0, 0, 0]], [[0, 1, 1, 2], [0, 1, 1, 1]]]
    )
    nodes = max(sizes)
    parts = {name: part[:, :nodes] for name, part in (("tokens", tokens), ("parents", parents), ("depths", depths))}
    return DraftBatch(**parts, sizes=np.array(sizes), widths=())


def answering(model: LeanModel, wanted: dict[int, int]) -> None:
    """Let the best token behind a token be another, for some, whatever text is before it: layers add nothing."""
    for layer in model.anatomy.layers:
        for part in (layer.output, layer.down):
            assert isinstance(part.by_kernels, BFloat16Product)
            part.by_kernels._weight.zero_()
    assert isinstance(model.anatomy.head.by_kernels, BFloat16Product)
    model.anatomy.embedding.copy_(torch.eye(model.vocabulary, model.hidden))
    panels = model.anatomy.head.by_kernels._weight
    weight = torch.zeros(model.vocabulary, model.hidden)
    for before, behind in wanted.items():
        weight[behind, before] = 1.0
    panels.copy_(weight.view(-1, panels.shape[2], model.hidden // 2, 2).transpose(1, 2))


@pytest.mark.parametrize("texts", [(3, 8), (5, 5)], ids=["other lengths", "one length"])
@pytest.mark.parametrize(("sizes", "fed"), [([4, 2], 4), ([3, 3], 6), ([1, 1], 1), ([1, 1], 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_round_by_one_call_is_what_it_is_step_by_step(
    family: str, sizes: list[int], fed: int, texts: tuple[int, int]
) -> None:
    model, masks = bfloat16_lean(family), Masks(torch.bfloat16, CPU, slots=2, capacity=CAPACITY)
    answering(model, {1: 6, 6: 7, 7: 2, 2: 9, 9: 4})
    draft = drafted(sizes)
    prompts = [(3,) * (texts[0] - 1) + (1,), (4,) * (texts[1] - 1) + (2,)]
    batch = [Sequence(Request(prompt=prompt, max_new_tokens=9), place) for place, prompt in enumerate(prompts)]
    trees = FedTrees(batch, draft, fed)
    whole, apart = (model.new_cache(SLOTS, CAPACITY) for _ in range(2))
    for cache in (whole, apart):
        cache.states.copy_(filled(model))
    assert model.can_verify(whole)
    drawn = model.verified(trees.unlaid, whole)

    step = trees.laid_out(masks)
    assert_same(model, step)
    stands = accepted(batch, draft, best_tokens(step_by_step(model).forward(step, apart)))
    apart.keep(stands.moves(batch))
    assert drawn is not None
    assert [row[1 : 1 + row[0]] for row in drawn.tolist()] == [path.drawn for path in stands.paths]
    expected = {4: [[6, 7, 2], [9, 4]], 3: [[6, 7], [9, 4]], 1: [[6], [9]]}
    assert [path.drawn for path in stands.paths] == expected[max(sizes)]
    for row, path in enumerate(stands.paths):  # behind these anything may stand
        end = batch[row].context + len(path.nodes)
        assert torch.equal(whole.states[:, row, :end], apart.states[:, row, :end])
    assert torch.equal(whole.states[:, 2:], apart.states[:, 2:])


def test_a_greedy_round_of_unknown_tokens_is_left_alone() -> None:
    model = bfloat16_lean("llama")
    batch = [Sequence(Request(prompt=(3, model.vocabulary), max_new_tokens=9), 0)]
    cache = model.new_cache(1, CAPACITY)
    assert model.can_verify(cache) and model.verified(FedTrees(batch, roots_of(1), 1).unlaid, cache) is None
    assert not cache.states.any()


def test_a_window_that_closes_part_of_a_text_leaves_a_greedy_round_alone() -> None:
    model = tiny_lean("mistral", torch.bfloat16, CPU, sliding_window=4, **SIZES)
    cache = model.new_cache(1, CAPACITY)
    verified = []
    for length in (3, 5):
        batch = [Sequence(Request(prompt=(3,) * length, max_new_tokens=9), 0)]
        verified.append(model.verified(FedTrees(batch, roots_of(1), 1).unlaid, cache))
    assert verified[0] is not None and verified[1] is None


def test_rounds_over_a_cache_that_holds_more_than_keys_go_step_by_step() -> None:
    model = bfloat16_lean("llama")
    assert model.can_verify(model.new_cache(1, CAPACITY))
    assert not model.can_verify(model.new_feature_cache(1, CAPACITY, (1,)))
    assert not step_by_step(model).can_verify(model.new_cache(1, CAPACITY))


class OfItsOwnWay(LeanModel):
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        return super().forward(step, cache)


def test_rounds_of_a_model_that_forwards_in_its_own_way_ask_it() -> None:
    model = OfItsOwnWay(bfloat16_lean("llama").anatomy)
    assert model._whole is not None and not model.can_verify(model.new_cache(1, CAPACITY))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"temperature": 1.2, "top_p": 0.8, "top_k": 9}])
def test_a_decoder_s_rounds_are_one_call_and_penalised_ones_are_not(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rounds, read = bfloat16_lean("llama"), list[int](), list[int]()
    verified, forward = model.verified, model.forward

    def noted(trees: UnlaidTrees, cache: KeyValueCache) -> Ints | None:
        rounds.append(trees.fed)
        return verified(trees, cache)

    def noted_forward(step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        read.append(step.tokens.shape[1])
        return forward(step, cache)

    monkeypatch.setattr(model, "verified", noted)
    monkeypatch.setattr(model, "forward", noted_forward)
    setup = RoundSetup(policy=LookupPolicy(length=3), drafter="lookup")
    requests = [replace(one, seed=place, **settings) for place, one in enumerate(random_requests(4, tokens=30))]
    found = run(model, requests, always(setup), {"lookup": LookupDrafter()}, slots=2)
    assert len(rounds) == found.target_forwards and max(rounds) > 1 and len(read) == len(requests)
    assert found.outputs == run(step_by_step(bfloat16_lean("llama")), requests).outputs
    rounds.clear()
    penalised = [replace(one, repetition_penalty=1.2) for one in requests]
    run(model, penalised, always(setup), {"lookup": LookupDrafter()}, slots=2)
    assert not rounds


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
