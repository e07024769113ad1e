"""Token Recycling's compiled calls take in and draft what its calls of torch's do, step by step."""

from __future__ import annotations

from copy import copy
from functools import lru_cache

import numpy as np
import pytest
import torch

from spectune.errors import ModelError, RequestError
from spectune.planner.growth.draft import Children
from spectune.planner.policies import ChainPolicy, Eagle2Policy, TreePolicy
from spectune.runtime.drafters.recycling import RecyclingDrafter, recalled, recycled_children
from spectune.runtime.feature_cache import FeatureCache
from spectune.runtime.layout import chain_sight, lay_out
from spectune.runtime.models.block import APART as BLOCKS_APART
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.kernels.recycled import APART
from spectune.runtime.models.recycling import RecyclingHead, SuccessorCache, Successors
from spectune.runtime.models.tapped import tapped_for
from spectune.runtime.models.whole_recycling import PIECE, greedy_children
from spectune.runtime.requests import Request, Sequence

from .decoded_runs import POLICIES
from .test_runtime_whole_finding import assert_same
from .test_runtime_whole_head import BEAMS, target_model
from .torch_threads import threads_of

pytestmark = pytest.mark.lossless
needs_dots = pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16")
VOCABULARY, SUCCESSORS, CAPACITY = 96, 5, 160
FEW = 12  # ids that texts are of, so that most come up again
GREEDY = Request(prompt=(0,), max_new_tokens=1)
GROWN = {kind: policy for kind, policy in POLICIES.items() if kind != "lookup"}


def test_apart_is_what_it_is_elsewhere() -> None:
    assert APART == BLOCKS_APART


@lru_cache
def heads() -> tuple[RecyclingHead, RecyclingHead]:
    """Return one head, and the same whose calls are torch's."""
    head = RecyclingHead(target_model(), SUCCESSORS)
    other = copy(head)
    other._whole = None
    return head, other


def cache_of(slots: int, *, seed: int, successors: int = SUCCESSORS, vocabulary: int = VOCABULARY) -> SuccessorCache:
    """Return texts of few tokens, and anything beside these; of some tokens fewer successors are said."""
    noise = torch.Generator().manual_seed(seed)
    cache = SuccessorCache(slots=slots, capacity=CAPACITY, successors=successors, device=torch.device("cpu"))
    cache.tokens.copy_(torch.randint(0, min(FEW, vocabulary), cache.tokens.shape, generator=noise))
    chances = torch.rand((slots, CAPACITY, successors + 1), generator=noise).log_softmax(-1)[..., :successors]
    cache.log_probs.copy_(chances.sort(-1, descending=True).values)
    order = torch.rand((slots, CAPACITY, vocabulary), generator=noise).argsort(-1)
    cache.ids.copy_(order[..., :successors])
    unsaid = torch.rand((slots, CAPACITY, 1), generator=noise) < 0.2
    behind = torch.arange(successors) >= torch.randint(0, successors + 1, (slots, CAPACITY, 1), generator=noise)
    cache.log_probs.masked_fill_(unsaid & behind, -torch.inf)
    return cache


def by_torch(cache: SuccessorCache, tokens: np.ndarray, lengths: np.ndarray, count: int, vocabulary: int) -> Children:
    known = recalled(cache, tokens, lengths)
    return recycled_children(known, count, [GREEDY] * len(tokens), torch.from_numpy(lengths), vocabulary)


@pytest.mark.parametrize("count", [1, 3, 5, 9, 96, 200])
@pytest.mark.parametrize("seed", range(4))
def test_lookups_are_those_of_torch(seed: int, count: int) -> None:
    cache, drawn = cache_of(3, seed=seed), np.random.default_rng(seed)
    tokens = drawn.integers(0, FEW + 3, (3, 7))  # some stand nowhere
    for lengths in (np.array([[1], [2], [140]]), drawn.integers(1, CAPACITY, (3, 7))):
        found = greedy_children(cache, tokens, lengths, count, VOCABULARY)
        expected = by_torch(cache, tokens, lengths, count, VOCABULARY)
        assert found is not None and np.array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-6)
        order = np.argsort(-found.log_probs, axis=-1, kind="stable")
        assert (order == np.arange(found.tokens.shape[2])).all()


def test_a_vocabulary_of_successors_alone_is_told_whole() -> None:
    cache = cache_of(1, seed=0, successors=4, vocabulary=4)
    tokens, lengths = np.arange(4)[None], np.array([[100]])
    found, expected = greedy_children(cache, tokens, lengths, 9, 4), by_torch(cache, tokens, lengths, 9, 4)
    assert found is not None and np.array_equal(found.tokens, expected.tokens)
    assert all(sorted(row) == [0, 1, 2, 3] for row in found.tokens[0].tolist())


def test_what_is_no_number_is_refused_where_it_is_looked_up() -> None:
    cache = cache_of(1, seed=0)
    cache.tokens[0, :3] = torch.tensor([90, 91, 92])
    cache.log_probs[0, 2, -1] = torch.nan  # behind 91
    lengths = np.array([[3]])
    assert greedy_children(cache, np.array([[90]]), lengths, 2, VOCABULARY) is not None
    with pytest.raises(ModelError, match="not numbers"):
        greedy_children(cache, np.array([[91]]), lengths, 2, VOCABULARY)


@needs_dots
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (3, 5), (1, PIECE + 9), (2, PIECE)])
def test_committed_tokens_are_taken_in_alike(batch: int, count: int, threads: int) -> None:
    noise = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (batch, count), generator=noise).numpy()
    states = torch.randn((batch, count, 64), generator=noise).to(torch.bfloat16)
    step = lay_out(
        tokens,
        np.arange(count),
        [4, 9, 2][:batch],
        chain_sight(count),
        first_slot=1,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    caches = [head.new_cache(4, CAPACITY) for head in heads()]
    with threads_of(threads):
        for head, cache in zip(heads(), caches, strict=True):
            head.keep(states, step, cache)
    whole, apart = caches
    torch.testing.assert_close(whole.log_probs, apart.log_probs, rtol=0, atol=1e-5)
    is_last = apart.log_probs < apart.log_probs[..., -1:] + 1e-4  # torch takes any of those that tie there
    assert torch.equal(whole.tokens, apart.tokens) and torch.equal(whole.ids[~is_last], apart.ids[~is_last])
    assert is_last[apart.tokens >= 0].float().mean() < 0.5
    assert (whole.tokens >= 0).sum() == batch * count


def reading(head: RecyclingHead, lengths: list[int], **settings: float) -> tuple[RecyclingDrafter, list[Sequence]]:
    """Return a drafter that has read texts of such lengths but for the newest token of each."""
    drafter = RecyclingDrafter(head, slots=len(lengths), capacity=CAPACITY)
    cache = tapped_for(target_model(), [head]).new_cache(len(lengths), CAPACITY)
    assert isinstance(cache, FeatureCache)
    cache.features.copy_(torch.randn(cache.features.shape, generator=torch.Generator().manual_seed(5)))
    drafter.attach(cache)
    sequences = []
    for slot, length in enumerate(lengths):
        prompt = tuple(np.random.default_rng(slot).integers(0, FEW, length).tolist())
        request = Request(prompt=prompt, max_new_tokens=30, **settings)  # type: ignore[arg-type]
        sequences.append(Sequence(request, slot))
        drafter.admit(slot, sequences[-1])
    return drafter, sequences


def assert_alike(policy: TreePolicy, lengths: list[int], *, grows: bool, **settings: float) -> None:
    """Hold drafts behind growing texts to those by torch's calls, and say whether they were one call."""
    (whole, texts), (apart, others) = (reading(heads()[0], lengths, **settings) for _ in range(2))
    assert whole._beside is not None
    apart._beside, apart.looked_up = None, lambda *_: None  # type: ignore[method-assign]
    for tokens in np.random.default_rng(1).integers(0, FEW, (4, len(lengths), 4)):
        assert (whole._grown_whole(texts, policy) is not None) == grows
        if grows:
            whole.rewind([len(text.tokens) - 1 for text in texts])
        before = whole.forwards
        assert_same(whole.draft(texts, policy), apart.draft(others, policy))
        assert whole.forwards == before + 1
        for slot, new in enumerate(tokens.tolist()):
            for sequences in (texts, others):
                sequences[slot].tokens.extend(new[: 1 + slot])


@pytest.mark.thinned
@needs_dots
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[40], [1, 12, 70]], ids=str)
@pytest.mark.parametrize("kind", BEAMS)
def test_a_whole_beam_is_looked_up_by_one_call(kind: str, lengths: list[int], threads: int) -> None:
    with threads_of(threads):
        assert_alike(BEAMS[kind], lengths, grows=True)


@needs_dots
@pytest.mark.parametrize("kind", GROWN)
def test_every_policy_draws_the_trees_that_it_draws_by_torch(kind: str) -> None:
    policy = GROWN[kind]
    assert_alike(policy, [30, 50], grows=isinstance(policy, ChainPolicy | Eagle2Policy))


@needs_dots
@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"repetition_penalty": 1.3}], ids=str)
def test_sampled_and_penalised_texts_go_step_by_step(settings: dict[str, float]) -> None:
    assert_alike(Eagle2Policy(verify_tokens=9, depth=2, top_k=3), [30, 50], grows=False, **settings)


@needs_dots
def test_a_draft_of_what_is_no_number_is_refused() -> None:
    drafter, sequences = reading(heads()[0], [30])
    cache = drafter._cache
    assert isinstance(cache, SuccessorCache)
    cache.log_probs.fill_(torch.nan)
    sequences[0].tokens.append(sequences[0].tokens[3])
    with pytest.raises(ModelError, match="not numbers"):
        drafter.draft(sequences, ChainPolicy(length=3))


@needs_dots
def test_a_text_that_the_cache_has_no_room_for_is_refused() -> None:
    drafter, sequences = reading(heads()[0], [30])
    sequences[0].tokens.extend([1] * (CAPACITY - 29))
    with pytest.raises(RequestError, match=f"needs room for {CAPACITY + 1} tokens"):
        drafter.draft(sequences, ChainPolicy(length=3))


@needs_dots
def test_an_unknown_token_is_left_to_torch() -> None:
    head, _ = heads()
    drafter, _ = reading(head, [30])
    assert drafter._beside is not None
    cache = head.new_cache(1, CAPACITY)
    tokens, contexts = np.array([[3, VOCABULARY]]), np.array([4])
    assert not head.read(tokens, contexts, cache, drafter._beside) and (cache.tokens < 0).all()
    assert head.read(tokens[:, :1], contexts, cache, drafter._beside) and cache.tokens[0, 4] == 3


@needs_dots
def test_more_children_than_there_are_tokens_are_found_step_by_step() -> None:
    assert_alike(Eagle2Policy(verify_tokens=9, depth=1, top_k=VOCABULARY + 1), [9], grows=False)


def test_successors_of_another_kind_of_head_are_told_by_torch() -> None:
    known = Successors(ids=torch.tensor([[[3, 1]]]), log_probs=torch.tensor([[[-0.5, -1.5]]]))
    found = recycled_children(known, 3, [GREEDY], torch.tensor([[4]]), 6)
    assert found.tokens.tolist() == [[[3, 1, 0]]]
