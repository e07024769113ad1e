"""A drafter is told the likeliest tokens by one compiled call: the very ones that it would find step by step."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
import torch

from spectune.errors import ModelError, RequestError
from spectune.planner.growth.beam import MANY
from spectune.planner.growth.draft import DraftBatch
from spectune.planner.kernels.arrays import Bools, Floats32, Ints
from spectune.planner.policies import ChainPolicy, Eagle2Policy, TreePolicy
from spectune.runtime.cache import KeyValueCache
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.growth.draft import children_of
from spectune.runtime.layout import chain_sight, lay_out
from spectune.runtime.models.bits import bits
from spectune.runtime.models.forward import ALL, NO_NODES, ForwardInput, UnlaidBeam, UnlaidNodes
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.requests import Request, Sequence

from .decoded_runs import POLICIES
from .fused_forward import tiny_lean
from .torch_threads import threads_of

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16"),
]
CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}  # whole panels, so that all weights are ours
SLOTS, CAPACITY = 3, 96
GROWN = {kind: policy for kind, policy in POLICIES.items() if kind != "lookup"}


def bfloat16_lean(family: str = "llama", **sizes: int) -> LeanModel:
    return tiny_lean(family, torch.bfloat16, CPU, **(SIZES | sizes))


def step_by_step(model: LeanModel) -> LeanModel:
    """Return the same model, whose forwards are not whole."""
    other = copy(model)
    other._whole = None
    return other


def text_of(tokens: list[list[int]], contexts: list[int], wanted: list[int]) -> UnlaidNodes:
    """Return the next tokens of texts."""
    seen = max(contexts) + len(tokens[0])
    return UnlaidNodes(
        tokens=np.array(tokens),
        contexts=np.array(contexts),
        depth=0,
        visible=NO_NODES,
        wanted=np.array(wanted),
        seen=seen,
    )


def layer_of(tokens: list[list[int]], contexts: list[int], depth: int, visible: list[list[list[int]]]) -> UnlaidNodes:
    """Return drafted nodes of one depth, told which of all drafted nodes each sees."""
    sees: Bools = np.array(visible, dtype=np.bool_)
    seen = max(contexts) + sees.shape[2]
    return UnlaidNodes(
        tokens=np.array(tokens), contexts=np.array(contexts), depth=depth, visible=sees, wanted=ALL, seen=seen
    )


NODES = {
    "a text": text_of([[3, 1, 4, 1, 5]], [0], [4]),
    "texts that end somewhere": text_of([[3, 1, 4], [2, 6, 5]], [4, 9], [2, 0]),
    "a token each": text_of([[7], [8], [9]], [6, 6, 6], [0, 0, 0]),
    "a token behind other texts": text_of([[7], [8], [9]], [6, 2, 11], [0, 0, 0]),
    "a chain": layer_of([[7]], [5], 2, [[[1, 1, 1]]]),
    "one below a bush": layer_of([[7], [2]], [5, 5], 1, [[[1, 0, 1]], [[0, 1, 1]]]),
    "siblings": layer_of([[7, 8, 9], [2, 2, 3]], [5, 8], 1, [[[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]] * 2),
}


def step_of(nodes: UnlaidNodes) -> ForwardInput:
    """Return the same as a forward's input."""
    count, is_text = nodes.tokens.shape[1], not nodes.visible.size
    return lay_out(
        nodes.tokens,
        np.arange(count) if is_text else np.full(count, nodes.depth),
        nodes.contexts.tolist(),
        chain_sight(count) if is_text else nodes.visible,
        written=0 if is_text else nodes.visible.shape[2] - count,
        take=nodes.wanted if is_text else None,
        dtype=torch.bfloat16,
        device=CPU,
    )


def filled(model: LeanModel) -> KeyValueCache:
    cache = model.new_cache(SLOTS, CAPACITY)
    cache.states.copy_(torch.randn(cache.states.shape, generator=torch.Generator().manual_seed(5)))
    return cache


@pytest.mark.thinned
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 100])
@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_it_finds_bit_by_bit_what_a_forward_and_a_search_find(family: str, kind: str, count: int, threads: int) -> None:
    with threads_of(threads):
        model, nodes = bfloat16_lean(family), NODES[kind]
        whole, apart = filled(model), filled(model)
        assert model.can_find(whole)
        found = model.found(nodes, count, whole)
        expected = children_of(step_by_step(model).forward(step_of(nodes), apart), count)
    assert found is not None
    tokens, log_probs, are_numbers = found
    assert np.array_equal(tokens, expected.tokens.numpy()) and tokens.shape[2] == min(count, model.vocabulary)
    assert np.array_equal(log_probs.view(np.uint32), expected.log_probs.numpy().view(np.uint32))
    assert are_numbers and np.array_equal(bits(whole.states), bits(apart.states))


@pytest.mark.parametrize("token", [-1, 64])
def test_an_unknown_token_is_left_alone(token: int) -> None:
    model = bfloat16_lean()
    cache = model.new_cache(1, CAPACITY)
    assert model.can_find(cache) and model.found(text_of([[3, token]], [0], [1]), 2, cache) is None
    assert not cache.states.any()


def test_a_window_that_closes_part_of_a_text_leaves_it_alone() -> None:
    model = bfloat16_lean("mistral", sliding_window=4)
    cache = model.new_cache(1, CAPACITY)
    found = [model.found(text_of([[7]], [context], [0]), 2, cache) for context in (3, 4)]
    assert found[0] is not None and found[1] is None


class OfItsOwnWay(LeanModel):
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        return super().forward(step, cache)


def test_who_forwards_in_an_own_way_or_keeps_more_than_keys_is_asked_step_by_step() -> None:
    model = bfloat16_lean()
    assert not OfItsOwnWay(model.anatomy).can_find(model.new_cache(1, CAPACITY))
    assert not model.can_find(model.new_feature_cache(1, CAPACITY, (1,)))
    assert not step_by_step(model).can_find(model.new_cache(1, CAPACITY))


SAMPLINGS: dict[str, list[dict[str, Any]]] = {  # each text's, in turn
    "sampled": [{"temperature": 0.7}],
    "masked": [
        {"temperature": 0.9, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.3, "min_p": 0.2, "top_k": 20, "top_p": 0.9},
    ],
    "some": [{}, {"temperature": 0.8}, {"temperature": 1.1, "top_p": 0.7}],
}


def reading(
    model: LeanModel, lengths: list[int], samplings: list[dict[str, Any]] | None = None
) -> tuple[ModelDrafter, list[Sequence]]:
    """Return a drafter that has read texts of such lengths but for the newest token of each."""
    each = samplings or [{}]
    drafter = ModelDrafter(model, slots=len(lengths), capacity=CAPACITY)
    sequences = []
    for slot, length in enumerate(lengths):
        prompt = tuple(np.random.default_rng(slot).integers(0, model.vocabulary, length).tolist())
        request = Request(prompt=prompt, max_new_tokens=30, seed=slot - 1, **each[slot % len(each)])
        sequences.append(Sequence(request, slot))
        drafter.admit(slot, sequences[-1])
    return drafter, sequences


def assert_same(first: DraftBatch, second: DraftBatch) -> None:
    for name in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert first.widths == second.widths


def assert_alike(
    model: LeanModel,
    policy: TreePolicy,
    lengths: list[int],
    samplings: list[dict[str, Any]] | None = None,
    *,
    grows: bool,
    rounds: int = 3,
) -> Asked:
    """Hold drafts behind growing texts to those of a drafter that is told step by step; return what was asked."""
    (whole, texts), (apart, others) = (reading(one, lengths, samplings) for one in (model, step_by_step(model)))
    asked, read = Asked.of(whole, grows=grows), whole.forwards
    emitted = np.random.default_rng(1).integers(0, model.vocabulary, (rounds, len(lengths), 4))
    for tokens in emitted:
        assert_same(whole.draft(texts, policy), apart.draft(others, policy))
        assert whole.forwards == apart.forwards == read + asked.times
        assert torch.equal(whole._cache.states, apart._cache.states)
        for slot, new in enumerate(tokens.tolist()):
            for sequences in (texts, others):
                sequences[slot].tokens.extend(new[: 1 + slot])
    return asked


@pytest.mark.parametrize("lengths", [[9], [4, 4], [3, 12, 7]], ids=str)
@pytest.mark.parametrize("kind", GROWN)
def test_drafts_are_those_of_a_drafter_that_is_told_step_by_step(kind: str, lengths: list[int]) -> None:
    assert assert_alike(bfloat16_lean(), GROWN[kind], lengths, grows=False).grown_times == 0


BEAMS: dict[str, TreePolicy] = {
    "one token": ChainPolicy(length=1),
    "a chain": ChainPolicy(length=5),
    "one layer": Eagle2Policy(verify_tokens=4, depth=0, top_k=5),
    "the best of few": Eagle2Policy(verify_tokens=6, depth=1, top_k=3),
    "all that it saw": Eagle2Policy(verify_tokens=60, depth=2, top_k=4),
    "the published one": Eagle2Policy(verify_tokens=60, depth=7, top_k=10),
    "the vocabulary": Eagle2Policy(verify_tokens=9, depth=1, top_k=64),
}
assert any(isinstance(beam, Eagle2Policy) and beam.depth * beam.top_k**2 > MANY for beam in BEAMS.values())


@pytest.mark.parametrize("samplings", SAMPLINGS)
@pytest.mark.parametrize("kind", GROWN)
def test_sampled_drafts_are_those_of_a_drafter_that_is_told_step_by_step(kind: str, samplings: str) -> None:
    asked = assert_alike(bfloat16_lean(), GROWN[kind], [3, 12, 7], SAMPLINGS[samplings], grows=False)
    assert asked.times and not asked.grown_times


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("samplings", SAMPLINGS)
@pytest.mark.parametrize("kind", BEAMS)
def test_a_whole_sampled_draft_is_grown_by_one_call(kind: str, samplings: str, threads: int) -> None:
    model, own = bfloat16_lean(), SAMPLINGS[samplings]
    with threads_of(threads):
        assert assert_alike(model, BEAMS[kind], [3, 12, 7], own, grows=True, rounds=2).grown_times == 2


def test_a_whole_sampled_draft_of_a_large_vocabulary_is_shared_among_threads() -> None:
    model = bfloat16_lean(vocab_size=4096)  # more scores than a thread draws alone
    with threads_of(2):
        assert_alike(model, BEAMS["all that it saw"], [5, 8], SAMPLINGS["masked"], grows=True, rounds=1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[9], [3, 12, 7]], ids=str)
@pytest.mark.parametrize("kind", BEAMS)
def test_a_whole_draft_is_grown_by_one_call(kind: str, lengths: list[int], threads: int) -> None:
    with threads_of(threads):
        assert assert_alike(bfloat16_lean(), BEAMS[kind], lengths, grows=True, rounds=2).grown_times == 2


@pytest.mark.parametrize("kind", BEAMS)
def test_of_equals_a_whole_draft_takes_those_that_are_taken_step_by_step(kind: str) -> None:
    model = bfloat16_lean()
    scale = model.anatomy.final_norm.scale
    assert scale is not None
    scale[...] = 0  # so that all scores are
    assert assert_alike(model, BEAMS[kind], [3, 8], grows=True, rounds=1).grown_times == 1


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (Eagle2Policy(verify_tokens=9, depth=1, top_k=65), {}),
        (Eagle2Policy(verify_tokens=9, depth=3, top_k=2), {"sliding_window": 6}),
        (GROWN["talon"], {}),
    ],
    ids=["children that the vocabulary does not have", "a window", "trees that stop by their scores"],
)
def test_other_drafts_are_grown_layer_by_layer(policy: TreePolicy, sizes: dict[str, int]) -> None:
    family = "mistral" if sizes else "llama"
    assert assert_alike(bfloat16_lean(family, **sizes), policy, [5], grows=True, rounds=1).grown_times == 0


class Asked:
    """Counts what a drafter has been told by one call, and how many forwards that were."""

    def __init__(self, model: LeanModel, grows: bool) -> None:
        self._model, self._grows, self.times, self.grown_times = model, grows, 0, 0

    @classmethod
    def of(cls, drafter: ModelDrafter, *, grows: bool = True) -> Asked:
        model = drafter._model
        assert isinstance(model, LeanModel) and drafter._finds is model
        drafter._finds = asked = cls(model, grows)
        return asked

    def can_find(self, cache: KeyValueCache) -> bool:
        return self._model.can_find(cache)

    def found(self, nodes: UnlaidNodes, count: int, cache: KeyValueCache) -> tuple[Ints, Floats32, bool] | None:
        self.times += 1
        return self._model.found(nodes, count, cache)

    def grown(self, beam: UnlaidBeam, cache: KeyValueCache) -> tuple[Ints, bool] | None:
        grown = self._model.grown(beam, cache) if self._grows else None
        if grown is not None:
            self.times += beam.depth + 1
            self.grown_times += 1
        return grown


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_of_texts_whose_repetitions_are_penalised_are_told_step_by_step(temperature: float) -> None:
    penalised = {"temperature": temperature, "repetition_penalty": 1.2}
    drafter, sequences = reading(bfloat16_lean(), [5, 8], [{}, penalised])
    asked, read = Asked.of(drafter), drafter.forwards
    drafter.draft(sequences, GROWN["eagle2"])
    assert asked.times == asked.grown_times == 0 and drafter.forwards > read


def test_a_text_whose_tail_is_too_long_is_read_before() -> None:
    model = bfloat16_lean()
    drafts = []
    for one in (model, step_by_step(model)):
        drafter, sequences = reading(one, [5, 8])
        sequences[1].tokens.extend([3] * (CAPACITY - 20))
        drafts.append(drafter.draft(sequences, GROWN["chain"]))
    assert_same(*drafts)


@pytest.mark.parametrize("samplings", ["greedy", *SAMPLINGS])
@pytest.mark.parametrize("kind", ["chain", "static"])
def test_logits_that_are_no_numbers_are_refused(kind: str, samplings: str) -> None:
    model = bfloat16_lean()
    drafter, sequences = reading(model, [5, 8, 3], SAMPLINGS.get(samplings))
    scale = model.anatomy.final_norm.scale
    assert scale is not None and drafter._finds is not None
    scale.view(np.uint16)[...] = 0x7FC0  # NaN in bfloat16, and both halves of one in float32
    with pytest.raises(ModelError, match="not numbers"):
        drafter.draft(sequences, GROWN[kind])


@pytest.mark.parametrize("kind", ["chain", "static"])  # the whole chain is told, of the tree its first layer of two
def test_a_draft_that_the_cache_has_no_room_for_is_refused(kind: str) -> None:
    drafter, sequences = reading(bfloat16_lean(), [5])
    sequences[0].tokens.extend([1] * (CAPACITY - 5))
    assert drafter._finds is not None
    with pytest.raises(RequestError, match=f"needs room for {CAPACITY + 2} tokens"):
        drafter.draft(sequences, GROWN[kind])
