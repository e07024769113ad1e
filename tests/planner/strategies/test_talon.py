"""TALON's tree against the paper's algorithm, spelt out over single paths of a toy drafter."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.talon import TalonPolicy

from ...support.toy_drafter import ToyDrafter, drafted_paths, toy_scorer

VOCABULARY = 9
Path = tuple[int, ...]
Scored = dict[Path, np.float32]  # path log-probability by path


def talon(
    nodes: int = 14, gate: float = 0.2, top_k: int = 3, children: int = VOCABULARY, max_depth: int = 50
) -> TalonPolicy:
    return TalonPolicy(nodes=nodes, gate=gate, top_k=top_k, children=children, max_depth=max_depth)


GATES = st.sampled_from([0.003, 0.03, 0.13, 0.3, 0.77, 1.0])  # no power of two: equal scores meet no gate exactly
POLICIES = st.builds(
    talon,
    nodes=st.integers(2, 40),
    gate=GATES,
    top_k=st.integers(1, 5),
    children=st.integers(5, VOCABULARY),
    max_depth=st.sampled_from([1, 2, 4, 50]),
)
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
LEVELS = st.sampled_from([None, 1, 3])  # few levels make many equal scores


def layers_by_dictionary(toy: ToyDrafter, policy: TalonPolicy) -> list[tuple[Scored, Scored]]:
    """Return, layer by layer, all candidates and those that join the tree, in the order they are recorded."""
    found: list[tuple[Scored, Scored]] = []
    frontier: Scored = {(): np.float32(0.0)}
    tree = 1
    while tree < policy.nodes and len(found) < policy.max_depth:
        candidates = {
            (*path, token): np.float32(score + step)
            for path, score in frontier.items()
            for token, step in toy.best(path, policy.children)
        }
        ranked = sorted(candidates, key=lambda path: -candidates[path])
        least = policy.gate * math.exp(candidates[ranked[0]])
        passing = [path for path in ranked if math.exp(candidates[path]) >= least]
        passing = (passing if found else ranked[: policy.top_k])[: policy.nodes - tree]
        frontier = {path: candidates[path] for path in passing}
        found.append((candidates, {path: score for path, score in candidates.items() if path in frontier}))
        tree += len(frontier)
    return found


def tree_by_dictionary(toy: ToyDrafter, policy: TalonPolicy) -> list[Path]:
    return [(), *(path for _, kept in layers_by_dictionary(toy, policy) for path in kept)]


def widths_by_dictionary(toy: ToyDrafter, policy: TalonPolicy) -> list[int]:
    """Return what each forward sees: the root, then every layer but the last."""
    return [1, *(len(kept) for _, kept in layers_by_dictionary(toy, policy)[:-1])]


@given(POLICIES, SEEDS, LEVELS)
def test_the_trees_equal_the_papers_algorithm(policy: TalonPolicy, seeds: list[int], levels: int | None) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=VOCABULARY, levels=levels), len(seeds))
    truth = [tree_by_dictionary(ToyDrafter(seed, VOCABULARY, levels), policy) for seed in seeds]
    assert [drafted_paths(draft, row) for row in range(len(seeds))] == truth


@given(POLICIES, SEEDS, LEVELS)
def test_every_forward_is_as_wide_as_the_widest_sequence_needs(
    policy: TalonPolicy, seeds: list[int], levels: int | None
) -> None:
    scorer = toy_scorer(*seeds, vocabulary=VOCABULARY, levels=levels)
    draft = grow(policy, scorer, len(seeds))
    alone = [widths_by_dictionary(ToyDrafter(seed, VOCABULARY, levels), policy) for seed in seeds]
    longest = max(len(widths) for widths in alone)
    assert draft.widths == tuple(scorer.widths)
    assert draft.widths == tuple(max(w[i] for w in alone if i < len(w)) for i in range(longest))


def row_of(draft: DraftBatch, row: int) -> tuple[list[int], ...]:
    size = int(draft.sizes[row])
    return draft.tokens[row, :size].tolist(), draft.parents[row, :size].tolist(), draft.depths[row, :size].tolist()


@given(POLICIES, SEEDS, LEVELS)
def test_a_sequence_of_a_batch_has_the_tree_it_has_alone(
    policy: TalonPolicy, seeds: list[int], levels: int | None
) -> None:
    together = grow(policy, toy_scorer(*seeds, vocabulary=VOCABULARY, levels=levels), len(seeds))
    for row, seed in enumerate(seeds):
        alone = grow(policy, toy_scorer(seed, vocabulary=VOCABULARY, levels=levels), 1)
        assert row_of(together, row) == row_of(alone, 0)


@given(SEEDS, GATES, st.integers(2, 40), st.integers(1, 9))
def test_without_a_depth_cap_the_budget_is_filled_exactly(
    seeds: list[int], gate: float, nodes: int, top_k: int
) -> None:
    draft = grow(talon(nodes, gate, top_k), toy_scorer(*seeds, vocabulary=VOCABULARY), len(seeds))
    assert draft.sizes.tolist() == [nodes] * len(seeds)


@given(SEEDS, GATES, st.integers(2, 40), st.integers(1, 9))
def test_the_first_layer_is_the_top_k_or_what_fits(seeds: list[int], gate: float, nodes: int, top_k: int) -> None:
    draft = grow(talon(nodes, gate, top_k), toy_scorer(*seeds, vocabulary=VOCABULARY), len(seeds))
    assert (draft.depths == 1).sum(axis=1).tolist() == [min(top_k, nodes - 1)] * len(seeds)


@pytest.mark.parametrize("seed", range(10))
def test_the_strictest_gate_leaves_a_chain_below_the_first_layer(seed: int) -> None:
    draft = grow(talon(12, 1.0, 4), toy_scorer(seed, vocabulary=VOCABULARY), 1)
    assert list(Counter(draft.depths[0].tolist()).values()) == [1, 4, *[1] * 7]


def test_the_strictest_gate_keeps_exact_ties_together() -> None:
    draft = grow(talon(5, 1.0, 1), toy_scorer(0, vocabulary=2, levels=1), 1)
    assert draft.depths[0].tolist() == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_top_one_and_the_strictest_gate_are_the_greedy_chain(seed: int) -> None:
    tree = grow(talon(9, 1.0, 1), toy_scorer(seed, vocabulary=VOCABULARY), 1)
    chain = grow(ChainPolicy(length=8), toy_scorer(seed, vocabulary=VOCABULARY), 1)
    assert tree.tokens.tolist() == chain.tokens.tolist() and tree.widths == chain.widths


@pytest.mark.parametrize("seed", range(10))
def test_hardly_a_gate_fills_the_budget_with_the_best_of_the_second_layer(seed: int) -> None:
    draft, toy = grow(talon(20, 1e-30, 4), toy_scorer(seed, vocabulary=VOCABULARY), 1), ToyDrafter(seed, VOCABULARY)
    firsts = dict(toy.best((), 4))
    seconds = {(a, b): p + q for a, p in firsts.items() for b, q in toy.best((a,), VOCABULARY)}
    best = sorted(seconds, key=lambda path: -seconds[path])[:15]
    assert set(drafted_paths(draft)) == {(), *((token,) for token in firsts), *best}


@given(POLICIES, st.integers(0, 10**6))
def test_below_the_first_layer_all_that_pass_the_gate_are_kept_and_no_others(policy: TalonPolicy, seed: int) -> None:
    drafted = set(drafted_paths(grow(policy, toy_scorer(seed, vocabulary=VOCABULARY), 1)))
    layers = layers_by_dictionary(ToyDrafter(seed, VOCABULARY), policy)
    for candidates, _ in layers[1:-1]:  # the last one may be cut by the budget
        least = policy.gate * math.exp(max(candidates.values()))
        assert {path for path in candidates if math.exp(candidates[path]) >= least} == drafted & set(candidates)


@given(POLICIES, SEEDS)
def test_there_is_one_forward_per_layer(policy: TalonPolicy, seeds: list[int]) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=VOCABULARY), len(seeds))
    assert len(draft.widths) == draft.depths.max() <= policy.draft_forwards


def test_the_deepest_tree_there_can_be_needs_the_forwards_promised() -> None:
    draft = grow(talon(14, 1.0, 3), toy_scorer(1, vocabulary=VOCABULARY), 1)
    assert len(draft.widths) == talon(14, 1.0, 3).draft_forwards == 11


def test_all_children_the_tree_has_room_for_are_as_good_as_the_whole_vocabulary() -> None:
    whole, enough = (
        grow(talon(14, 1e-30, 3, children), toy_scorer(4, vocabulary=30), 1) for children in (30, 14 - 1 - 3)
    )
    assert drafted_paths(whole) == drafted_paths(enough)
