"""A head of EAGLE-3's form says by one compiled call what it says step by step, and whole drafts of it are one call."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from spectune.errors import ModelError, RequestError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.head import HeadDrafter
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form, HeadShape
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.kv_cache import FeatureCache
from spectune.runtime.models.layout import chain_sight, lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ...support.decoded_runs import POLICIES
from ...support.tiny_heads import READS, Weights, head_weights, layer_config
from ...support.tiny_models import tiny_llama
from ...support.torch_threads import threads_of

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16"),
]
CPU = torch.device("cpu")
VOCABULARY, DRAFTED = 96, 64  # whole panels, like all sizes of the head
SLOTS, CAPACITY = 3, 96
GROWN = {kind: policy for kind, policy in POLICIES.items() if kind != "lookup"}
BEAMS: dict[str, TreePolicy] = {
    "one token": ChainPolicy(length=1),
    "a chain": ChainPolicy(length=5),
    "one layer": Eagle2Policy(verify_tokens=4, depth=0, top_k=5),
    "the best of few": Eagle2Policy(verify_tokens=6, depth=1, top_k=3),
    "the published one": Eagle2Policy(verify_tokens=60, depth=7, top_k=10),
    "all that it can draft": Eagle2Policy(verify_tokens=9, depth=1, top_k=DRAFTED),
}


@lru_cache
def target_source() -> LlamaForCausalLM:
    return tiny_llama(layers=3, seed=0, vocabulary=VOCABULARY, hidden=64)


@lru_cache
def target_model() -> LeanModel:
    return LeanModel(deepcopy(target_source()).to(torch.bfloat16))  # type: ignore[arg-type]  # of `to` as a dtype


def weights_of(form: Form = "eagle3", *, reduced: bool = True) -> Weights:
    """Return a head's tensors, whole panels of each."""
    found = head_weights(form, target_source(), inner=96, drafted=DRAFTED, reduced=reduced)
    return {name: tensor if name == "d2t" else tensor.to(torch.bfloat16) for name, tensor in found.items()}


def head_of(form: Form = "eagle3", weights: Weights | None = None, *, reduced: bool = True) -> EagleHead:
    shape = HeadShape(form=form, config=layer_config(target_source(), inner=96), reads=READS[form])
    return EagleHead(weights_of(form, reduced=reduced) if weights is None else weights, shape, target_model())


SAMPLINGS: dict[str, list[dict[str, Any]]] = {  # each text's, in turn
    "sampled": [{"temperature": 0.7}],
    "masked": [
        {"temperature": 0.9, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.3, "min_p": 0.2, "top_k": 20, "top_p": 0.9},
    ],
    "some": [{}, {"temperature": 0.8}, {"temperature": 1.1, "top_p": 0.7}],
}


def assert_same(first: DraftBatch, second: DraftBatch) -> None:
    for name in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert first.widths == second.widths


def step_by_step(head: EagleHead) -> EagleHead:
    """Return the same head, whose forwards are not whole."""
    other = copy(head)
    other._whole = None
    return other


def filled(cache: FeatureCache, seed: int = 5) -> FeatureCache:
    """Return a cache that holds anything."""
    generator = torch.Generator().manual_seed(seed)
    for part in (cache.states, cache.features):
        part.copy_(torch.randn(part.shape, generator=generator))
    return cache


def text_step(tokens: list[list[int]], contexts: list[int], take: list[int] | None = None) -> ForwardInput:
    count = len(tokens[0])
    return lay_out(
        np.array(tokens),
        np.arange(count),
        contexts,
        chain_sight(count),
        take=None if take is None else np.array(take),
        dtype=torch.bfloat16,
        device=CPU,
    )


def layer_step(tokens: list[list[int]], contexts: list[int], visible: list[list[list[int]]]) -> ForwardInput:
    sees = np.array(visible, dtype=np.bool_)
    count = len(tokens[0])
    return lay_out(
        np.array(tokens),
        np.full(count, 1),
        contexts,
        sees,
        written=sees.shape[2] - count,
        dtype=torch.bfloat16,
        device=CPU,
    )


STEPS = {
    "a text": text_step([[3, 1, 4, 1, 5]], [0]),
    "the first token": text_step([[3]], [0]),
    "texts' ends": text_step([[3, 1, 4], [2, 6, 5]], [0, 9], [2, 0]),
    "a token each": text_step([[7], [8], [9]], [6, 6, 6], [0, 0, 0]),
    "a token behind other texts": text_step([[7], [8], [9]], [6, 2, 11], [0, 0, 0]),
    "a chain": layer_step([[7]], [5], [[[1, 1, 1]]]),
    "siblings": layer_step([[7, 8, 9], [2, 2, 3]], [5, 8], [[[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]] * 2),
}


@pytest.mark.thinned
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("reads", [True, False])
def test_a_forward_says_what_it_says_step_by_step(kind: str, reads: bool, reduced: bool, threads: int) -> None:
    with threads_of(threads):
        whole, step = head_of(reduced=reduced), STEPS[kind]
        assert whole._whole is not None
        apart = step_by_step(whole)
        caches = [filled(whole.new_cache(SLOTS, CAPACITY)) for _ in range(2)]
        shape = *step.tokens.shape, len(whole.reads) * 64
        given = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
        pairs = zip((whole, apart), caches, strict=True)
        found, expected = (h.read(given, step, cache) if reads else h.forward(step, cache) for h, cache in pairs)
    assert found.shape == expected.shape and torch.equal(found, expected)
    for part, other, before in zip(*map(kept, (*caches, filled(whole.new_cache(SLOTS, CAPACITY)))), strict=True):
        assert torch.equal(part, other) and not torch.equal(part, before)


def kept(cache: FeatureCache) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.states, cache.features


def test_padding_that_does_not_see_itself_leaves_numbers() -> None:
    """As in a recording: it sees the first column alone, which nobody is to see."""
    head = head_of()
    cache = filled(head.new_cache(1, CAPACITY))
    step = text_step([[3, 1]], [8])
    bias = torch.full((1, 2, 12), -torch.inf, dtype=torch.bfloat16)
    bias[0, 0, :9], bias[0, 1, 0] = 0.0, 0.0
    given = torch.randn((1, 2, len(head.reads) * 64), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    found = head.read(given, replace(step, bias=bias, seen=12), cache)
    assert not found.isnan().any() and not cache.features.isnan().any()


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_unknown_token_is_left_to_torch(token: int) -> None:
    head = head_of()
    cache = head.new_cache(1, CAPACITY)
    assert head._whole is not None
    step, given = text_step([[3, token]], [0]), torch.zeros(2, len(head.reads) * 64, dtype=torch.bfloat16)
    assert head._whole(step, cache, given, np.zeros((1, 2), dtype=np.int64)) is None
    assert not cache.states.any() and not cache.features.any()


def unordered() -> Weights:
    """Return a head that names the tokens that it can draft in another order."""
    weights = weights_of()
    ids = (weights["d2t"] + torch.arange(DRAFTED)).flip(0)
    return weights | {"d2t": ids - torch.arange(DRAFTED)}


def test_what_kernels_do_not_take_goes_step_by_step() -> None:
    assert head_of("eagle")._whole is None
    assert head_of(weights=unordered())._whole is None
    weights = weights_of()
    odd = {"lm_head.weight": weights["lm_head.weight"][:40], "d2t": weights["d2t"][:40]}
    assert head_of(weights=weights | odd)._whole is None


def test_a_head_that_reads_other_states_than_a_target_keeps_drafts_from_its_own_columns() -> None:
    head = head_of()
    target = tapped_for(target_model(), [head], also=(0,))
    cache = target.new_cache(1, CAPACITY)
    assert isinstance(cache, FeatureCache) and cache.after == (0, *READS["eagle3"])
    assert_alike(head, ChainPolicy(length=3), [7], grows=True, also=(0,))


def reading(
    head: EagleHead,
    lengths: list[int],
    samplings: list[dict[str, Any]] | None = None,
    *,
    also: tuple[int, ...] = (),
) -> tuple[HeadDrafter, list[Sequence]]:
    """Return a head that has read texts of such lengths but for the newest token of each, beside a target's states."""
    drafter = HeadDrafter(head, slots=len(lengths), capacity=CAPACITY)
    cache = tapped_for(target_model(), [head], also=also).new_cache(len(lengths), CAPACITY)
    assert isinstance(cache, FeatureCache)
    drafter.attach(filled(cache))
    sequences, each = [], samplings or [{}]
    for slot, length in enumerate(lengths):
        prompt = tuple(np.random.default_rng(slot).integers(0, VOCABULARY, length).tolist())
        request = Request(prompt=prompt, max_new_tokens=30, seed=slot - 1, **each[slot % len(each)])
        sequences.append(Sequence(request, slot))
        drafter.admit(slot, sequences[-1])
    return drafter, sequences


def assert_alike(
    head: EagleHead,
    policy: TreePolicy,
    lengths: list[int],
    samplings: list[dict[str, Any]] | None = None,
    *,
    grows: bool,
    also: tuple[int, ...] = (),
) -> None:
    """Hold drafts behind growing texts to those of a drafter that is told step by step."""
    (whole, texts), (apart, others) = (
        reading(one, lengths, samplings, also=also) for one in (head, step_by_step(head))
    )
    assert whole._finds is not None and apart._finds is None
    grown = whole._finds.grown
    told = list[bool]()

    def counted(*asked: object) -> object:
        answer = grown(*asked) if grows else None  # type: ignore[arg-type]
        told.append(answer is not None)
        return answer

    whole._finds.grown = counted  # type: ignore[method-assign,assignment]
    for tokens in np.random.default_rng(1).integers(0, VOCABULARY, (2, len(lengths), 4)):
        assert_same(whole.draft(texts, policy), apart.draft(others, policy))
        assert whole.forwards == apart.forwards
        assert torch.equal(whole._cache.states, apart._cache.states)
        for slot, new in enumerate(tokens.tolist()):
            for sequences in (texts, others):
                sequences[slot].tokens.extend(new[: 1 + slot])
    assert any(told) == (grows and (isinstance(policy, ChainPolicy | Eagle2Policy)))


@pytest.mark.thinned
@pytest.mark.parametrize("lengths", [[9], [1, 4], [3, 12, 7]], ids=str)
@pytest.mark.parametrize("kind", GROWN)
def test_drafts_are_those_of_a_head_that_is_told_step_by_step(kind: str, lengths: list[int]) -> None:
    assert_alike(head_of(), GROWN[kind], lengths, grows=False)


@pytest.mark.thinned
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[9], [1, 12, 7]], ids=str)
@pytest.mark.parametrize("kind", BEAMS)
def test_a_whole_draft_is_grown_by_one_call(kind: str, lengths: list[int], threads: int) -> None:
    with threads_of(threads):
        assert_alike(head_of(), BEAMS[kind], lengths, grows=True)


def test_a_head_of_the_whole_vocabulary_drafts_any_token() -> None:
    assert_alike(head_of(reduced=False), BEAMS["the published one"], [5], grows=True)


def test_more_children_than_a_head_can_draft_are_found_step_by_step() -> None:
    policy = Eagle2Policy(verify_tokens=9, depth=1, top_k=DRAFTED + 1)
    drafts = []
    for head in (head_of(), step_by_step(head_of())):
        drafter, sequences = reading(head, [5, 8])
        drafts.append(drafter.draft(sequences, policy))
    assert_same(*drafts)


@pytest.mark.thinned
@pytest.mark.parametrize("samplings", SAMPLINGS)
@pytest.mark.parametrize("kind", GROWN)
def test_sampled_drafts_are_those_of_a_head_that_is_told_step_by_step(kind: str, samplings: str) -> None:
    head = head_of(reduced=samplings == "sampled")
    assert_alike(head, GROWN[kind], [3, 12, 7], SAMPLINGS[samplings], grows=False)


@pytest.mark.thinned
@pytest.mark.parametrize("samplings", SAMPLINGS)
@pytest.mark.parametrize("kind", BEAMS)
def test_a_whole_sampled_draft_is_grown_by_one_call(kind: str, samplings: str) -> None:
    head = head_of(reduced=samplings == "sampled")
    assert_alike(head, BEAMS[kind], [1, 12, 7], SAMPLINGS[samplings], grows=True)


@pytest.mark.parametrize("samplings", ["masked", "some"])
def test_a_head_of_part_of_the_vocabulary_drafts_what_is_kept_of_it(samplings: str) -> None:
    """Where more children are asked for than are kept, either way fills up with other tokens that are never drawn."""
    assert_alike(head_of(), BEAMS["a chain"], [1, 12, 7], SAMPLINGS[samplings], grows=True)


def test_drafts_of_texts_whose_repetitions_are_penalised_are_those_step_by_step() -> None:
    assert_alike(head_of(), GROWN["static"], [5, 8], [{}, {"repetition_penalty": 1.2}], grows=False)


@pytest.mark.parametrize("samplings", ["greedy", *SAMPLINGS])
@pytest.mark.parametrize("kind", ["chain", "static"])
def test_logits_that_are_no_numbers_are_refused(kind: str, samplings: str) -> None:
    weights = weights_of()
    head = head_of(weights=weights | {"norm.weight": torch.full_like(weights["norm.weight"], torch.nan)})
    drafter, sequences = reading(head, [5, 8, 3], SAMPLINGS.get(samplings))
    assert drafter._finds is not None
    with pytest.raises(ModelError, match="not numbers"):
        drafter.draft(sequences, GROWN[kind])


@pytest.mark.parametrize("kind", ["chain", "static"])
def test_a_draft_that_the_cache_has_no_room_for_is_refused(kind: str) -> None:
    drafter, sequences = reading(head_of(), [5])
    sequences[0].tokens.extend([1] * (CAPACITY - 5))
    with pytest.raises(RequestError, match="needs room for"):
        drafter.draft(sequences, GROWN[kind])


def test_a_head_beside_no_target_says_so() -> None:
    drafter = HeadDrafter(head_of(), slots=1, capacity=CAPACITY)
    with pytest.raises(ModelError, match="attach"):
        drafter.admit(0, Sequence(Request(prompt=(1, 2, 3), max_new_tokens=3), 0))
