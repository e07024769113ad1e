"""Stacks of drafters: each level does what it is said to do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence as Many

import numpy as np
import pytest
from torch import Tensor

from spectune.errors import ModelError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import StackDrafter, comb_of, stack_drafter
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import CAPACITY
from ...support.stack_family import MODELS, STACKS, WEIGHTS, greedy_chain, next_token, played, with_siblings
from ...support.tiny_models import plain_logits, tiny_llama

PROMPTS = [(5, 1, 9), (7,), (3, 3, 8, 2, 1, 3, 3, 8), (11, 4), (2, 19, 2, 19, 2)]


def test_a_stack_that_is_never_right_still_hands_up_its_length() -> None:
    policy = STACKS["3 models"]
    models = {"medium": MODELS["medium"], "small": LeanModel(tiny_llama(layers=1, seed=9))}
    draft, _ = one_draft(policy, PROMPTS[:1], models)
    assert int(draft.sizes[0]) - 1 >= policy.lengths[0]


def one_draft(
    policy: StackPolicy, texts: Many[tuple[int, ...]], models: dict[str, CausalModel] = MODELS
) -> tuple[DraftBatch, StackDrafter]:
    """Draft once behind fresh texts."""
    drafter = stack_drafter(policy, models, slots=len(texts), capacity=CAPACITY)
    sequences = [Sequence(Request(prompt=text, max_new_tokens=50), place) for place, text in enumerate(texts)]
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    return drafter.draft(sequences, policy), drafter


def test_a_stack_that_is_let_go_lets_its_caches_go_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        _, drafter = one_draft(STACKS["3 models"], PROMPTS[:1])
        caches = [weakref.ref(level._cache) for level in drafter._levels]
        assert caches and all(cache() is not None for cache in caches)
        del drafter
        assert all(cache() is None for cache in caches)
    finally:
        gc.enable()


def chain_of(draft: DraftBatch, row: int) -> list[int]:
    """Return the path from the root on which every node is its parent's first child."""
    nodes, chain = list(range(1, int(draft.sizes[row]))), []
    node = 0
    while children := [one for one in nodes if draft.parents[row, one] == node]:
        node = children[0]
        chain.append(int(draft.tokens[row, node]))
    return chain


@pytest.mark.thinned
@pytest.mark.parametrize("siblings", [0, 2])
@pytest.mark.parametrize("name", STACKS)
def test_the_chain_is_the_first_drafters_own_by_transformers(name: str, siblings: int) -> None:
    draft, _ = one_draft(with_siblings(name, siblings), PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        chain = chain_of(draft, row)
        assert len(chain) >= STACKS[name].lengths[0]
        assert chain == greedy_chain("medium", prompt, len(chain))


def test_siblings_are_the_first_drafters_next_best_tokens() -> None:
    draft, _ = one_draft(with_siblings("3 models", 2), PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        chain = chain_of(draft, row)
        for depth in range(len(chain)):
            best = plain_logits(WEIGHTS["medium"], (*prompt, *chain[:depth]))[-1].topk(3).indices.tolist()
            assert draft.tokens[row, 1 + 3 * depth : 4 + 3 * depth].tolist() == best
            assert set(draft.parents[row, 1 + 3 * depth : 4 + 3 * depth].tolist()) == {max(3 * depth - 2, 0)}
            assert set(draft.depths[row, 1 + 3 * depth : 4 + 3 * depth].tolist()) == {depth + 1}


@pytest.mark.thinned
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", STACKS)
def test_every_forward_is_one_that_playing_the_stack_token_by_token_runs(name: str, rows: int) -> None:
    policy, prompts = STACKS[name], PROMPTS[:rows]
    draft, _ = one_draft(policy, prompts)
    ran: list[int] = []
    chains = played(policy, prompts, ran.append)
    assert [chain_of(draft, row) for row in range(rows)] == chains
    assert list(draft.levels) == ran


@pytest.mark.parametrize("name", STACKS)
def test_a_drafter_that_goes_on_drafts_as_a_fresh_one_does(name: str) -> None:
    """Committed tokens follow the draft, leave it at once, or leave it in the middle; each sequence at its own pace."""
    policy, rng = STACKS[name], np.random.default_rng(4)
    sequences = [Sequence(Request(prompt=prompt, max_new_tokens=90), 0) for prompt in PROMPTS[:2]]
    drafter = stack_drafter(policy, MODELS, slots=2, capacity=CAPACITY)
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    for _ in range(8):
        draft = drafter.draft(sequences, policy)
        fresh, _ = one_draft(policy, [tuple(s.tokens) for s in sequences])
        assert draft.tokens.tolist() == fresh.tokens.tolist()
        assert draft.levels == fresh.levels
        for row, sequence in enumerate(sequences):
            chain = chain_of(draft, row)
            sequence.tokens += [*chain[: rng.integers(len(chain) + 1)], int(rng.integers(24))]


def test_a_sequence_that_moves_to_another_slot_goes_on() -> None:
    policy = STACKS["4 models"]
    sequences = [Sequence(Request(prompt=prompt, max_new_tokens=90), 0) for prompt in PROMPTS[:3]]
    drafter = stack_drafter(policy, MODELS, slots=3, capacity=CAPACITY)
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    drafter.draft(sequences, policy)
    drafter.move(2, 0)
    moved = [sequences[2], sequences[1]]
    for sequence in moved:
        sequence.tokens += [4, 17]
    fresh, _ = one_draft(policy, [tuple(s.tokens) for s in moved])
    assert drafter.uncached(moved) == 2
    assert drafter.draft(moved, policy).tokens.tolist() == fresh.tokens.tolist()


def test_the_same_text_may_be_drafted_for_twice() -> None:
    policy = STACKS["3 models"]
    drafter = stack_drafter(policy, MODELS, slots=1, capacity=CAPACITY)
    sequence = Sequence(Request(prompt=PROMPTS[0], max_new_tokens=90), 0)
    drafter.admit(0, sequence)
    first = drafter.draft([sequence], policy)
    assert drafter.draft([sequence], policy).tokens.tolist() == first.tokens.tolist()


class Watched:
    """A model that keeps the width of every forward, and can fail in one."""

    def __init__(self, model: CausalModel, fails_at: int = -1) -> None:
        self.model, self.fails_at = model, fails_at
        self.widths: list[int] = []
        self.dtype, self.device, self.vocabulary = model.dtype, model.device, model.vocabulary
        self.longest_context, self.regime, self.attention = model.longest_context, model.regime, model.attention
        self.gallery = model.gallery

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        return self.model.new_cache(slots, capacity)

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        self.widths.append(step.tokens.shape[1])
        if len(self.widths) - 1 == self.fails_at:
            raise RuntimeError("this forward fails")
        return self.model.forward(step, cache)


@pytest.mark.parametrize("name", STACKS)
def test_widths_are_the_tokens_that_each_models_forwards_are_fed(name: str) -> None:
    policy = STACKS[name]
    watched = {key: Watched(model) for key, model in MODELS.items()}
    drafter = stack_drafter(policy, dict(watched), slots=1, capacity=CAPACITY)
    sequence = Sequence(Request(prompt=PROMPTS[0], max_new_tokens=90), 0)
    drafter.admit(0, sequence)
    for _ in range(6):
        for model in watched.values():
            model.widths.clear()
        draft = drafter.draft([sequence], policy)
        for level, key in enumerate(policy.models):
            told = [width for width, ran in zip(draft.widths, draft.levels, strict=True) if ran == level]
            assert told == watched[key].widths
        assert len(draft.widths) <= policy.draft_forwards
        sequence.tokens += chain_of(draft, 0)[:3]


def test_forwards_are_counted_by_level() -> None:
    policy = STACKS["4 models"]
    draft, drafter = one_draft(policy, [(7,)])  # of a prompt of one token nothing is read beforehand
    assert drafter.level_forwards == tuple(np.bincount(draft.levels).tolist())
    assert drafter.forwards == sum(drafter.level_forwards)


@pytest.mark.parametrize("fails_at", range(3, 9))
def test_a_stack_that_failed_within_a_draft_drafts_on_as_if_it_had_not(fails_at: int) -> None:
    policy = STACKS["3 models"]
    models: dict[str, CausalModel] = {**MODELS, "small": Watched(MODELS["small"], fails_at)}
    drafter = stack_drafter(policy, models, slots=1, capacity=CAPACITY)
    sequence = Sequence(Request(prompt=PROMPTS[0], max_new_tokens=90), 0)
    drafter.admit(0, sequence)
    failures = 0
    for _ in range(5):
        try:
            draft = drafter.draft([sequence], policy)
        except RuntimeError:
            failures += 1
        else:
            assert chain_of(draft, 0) == greedy_chain("medium", tuple(sequence.tokens), int(draft.sizes[0]) - 1)
        sequence.tokens += [next_token("medium", tuple(sequence.tokens)), 6]
    assert failures == 1


def test_a_stack_of_one_model_drafts_that_models_chain() -> None:
    draft, _ = one_draft(StackPolicy(drafters=("small",), lengths=(5,)), PROMPTS)
    drafter = ModelDrafter(MODELS["small"], slots=len(PROMPTS), capacity=CAPACITY)
    sequences = [Sequence(Request(prompt=prompt, max_new_tokens=50), 0) for prompt in PROMPTS]
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    chain = drafter.draft(sequences, ChainPolicy(length=5))
    for field in ("tokens", "parents", "depths", "sizes", "widths"):
        assert np.array_equal(getattr(draft, field), getattr(chain, field))


def test_a_tree_has_no_more_siblings_than_there_are_tokens() -> None:
    draft, _ = one_draft(StackPolicy(drafters=("medium",), lengths=(2,), siblings=100), PROMPTS[:1])
    assert int(draft.sizes[0]) == 1 + 2 * 24


def test_combs_of_a_batch_are_padded_to_the_longest() -> None:
    draft = comb_of([[[4, 5], [6, 7]], [[8, 9]]], 2)
    assert draft.tokens.tolist() == [[-1, 4, 5, 6, 7], [-1, 8, 9, -1, -1]]
    assert draft.parents.tolist() == [[-1, 0, 0, 1, 1], [-1, 0, 0, 0, 0]]
    assert draft.depths.tolist() == [[0, 1, 1, 2, 2], [0, 1, 1, 1, 1]]
    assert draft.sizes.tolist() == [5, 3]


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelError, match="needs tiny; loaded are medium, small"):
        stack_drafter(STACKS["4 models"], {name: MODELS[name] for name in ("medium", "small")}, slots=1, capacity=9)


def test_a_stack_of_another_height_is_refused() -> None:
    drafter = stack_drafter(STACKS["3 models"], MODELS, slots=1, capacity=CAPACITY)
    with pytest.raises(ModelError, match="needs 1 models, this one has 2"):
        drafter.draft([Sequence(Request(prompt=(1,), max_new_tokens=9), 0)], STACKS["2 models"])
