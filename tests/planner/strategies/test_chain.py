"""Chains that stop where the drafter doubts, each on its own within a batch."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.records.draft import Bools, DraftBatch
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy

from ...support.toy_drafter import ToyDrafter, drafted_paths, toy_scorer

Path = tuple[int, ...]
POLICIES = st.builds(
    ConfidentChainPolicy, length=st.integers(1, 9), confidence=st.sampled_from([0.0, 0.2, 0.45, 0.55, 0.7, 0.97, 1.0])
)
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)


def chain_token_by_token(toy: ToyDrafter, policy: ConfidentChainPolicy) -> list[Path]:
    found: list[Path] = [()]
    while len(found) <= policy.length:
        ((token, log_prob),) = toy.best(found[-1], 1)
        found.append((*found[-1], token))
        if math.exp(log_prob) < policy.confidence:
            break
    return found


@given(POLICIES, SEEDS)
def test_the_first_doubted_token_is_the_last_one(policy: ConfidentChainPolicy, seeds: list[int]) -> None:
    draft = grow(policy, toy_scorer(*seeds), len(seeds))
    truth = [chain_token_by_token(ToyDrafter(seed, 6), policy) for seed in seeds]
    assert [drafted_paths(draft, row) for row in range(len(seeds))] == truth


@given(POLICIES, SEEDS)
def test_forwards_go_on_for_the_surest_sequence(policy: ConfidentChainPolicy, seeds: list[int]) -> None:
    scorer = toy_scorer(*seeds)
    draft = grow(policy, scorer, len(seeds))
    assert draft.widths == tuple(scorer.widths) == (1,) * (int(draft.sizes.max()) - 1)


@given(POLICIES, SEEDS)
def test_a_chain_of_a_batch_is_the_chain_alone(policy: ConfidentChainPolicy, seeds: list[int]) -> None:
    together = grow(policy, toy_scorer(*seeds), len(seeds))
    for row, seed in enumerate(seeds):
        alone, size = grow(policy, toy_scorer(seed), 1), int(together.sizes[row])
        assert (together.tokens[row, :size] == alone.tokens[0]).all()
        assert (together.parents[row, :size] == alone.parents[0]).all()
        assert (together.depths[row, :size] == alone.depths[0]).all()


@given(POLICIES, SEEDS)
def test_what_pads_a_chain_has_no_token_and_hangs_on_the_root(policy: ConfidentChainPolicy, seeds: list[int]) -> None:
    draft = grow(policy, toy_scorer(*seeds), len(seeds))
    is_padding = np.arange(draft.tokens.shape[1]) >= draft.sizes[:, None]
    assert padding(draft, is_padding) <= {(-1, 0, 1)}


def padding(draft: DraftBatch, is_padding: Bools) -> set[tuple[int, int, int]]:
    columns = (array[is_padding].tolist() for array in (draft.tokens, draft.parents, draft.depths))
    return set(zip(*columns, strict=True))


@given(SEEDS, st.integers(1, 6))
def test_a_drafter_that_is_never_doubted_drafts_the_whole_chain(seeds: list[int], length: int) -> None:
    sure = grow(ConfidentChainPolicy(length=length, confidence=0.0), toy_scorer(*seeds), len(seeds))
    chain = grow(ChainPolicy(length=length), toy_scorer(*seeds), len(seeds))
    for field in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(sure, field), getattr(chain, field))
    assert sure.widths == chain.widths


def test_a_drafter_that_is_always_doubted_drafts_one_token() -> None:
    draft = grow(ConfidentChainPolicy(length=9, confidence=1.0), toy_scorer(1, 2), 2)
    assert draft.sizes.tolist() == [2, 2] and draft.widths == (1,)
