"""EAGLE-2's tree against a slow dictionary version of the published procedure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.strategies.base import grow
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy

from ...support.toy_drafter import ToyDrafter, drafted_paths, toy_scorer

Path = tuple[int, ...]


def recorded_by_dictionary(drafter: ToyDrafter, depth: int, top_k: int) -> dict[Path, np.float32]:
    """Return the path score of every node EAGLE-2 records, in the order it records them."""
    recorded: dict[Path, np.float32] = {}
    frontier: dict[Path, np.float32] = {(): np.float32(0.0)}
    for _ in range(depth + 1):
        layer: dict[Path, np.float32] = {}
        for path, score in frontier.items():
            for token, log_prob in drafter.best(path, top_k):
                layer[(*path, token)] = np.float32(score + log_prob)
        recorded |= layer
        best = sorted(layer, key=lambda path: -layer[path])[:top_k]  # sorted is stable: ties keep their order
        frontier = {path: layer[path] for path in best}
    return recorded


def tree_by_dictionary(drafter: ToyDrafter, policy: Eagle2Policy) -> list[Path]:
    recorded = recorded_by_dictionary(drafter, policy.depth, policy.top_k)
    chosen = set(sorted(recorded, key=lambda path: -recorded[path])[: policy.verify_tokens - 1])
    return [(), *(path for path in recorded if path in chosen)]


@given(
    st.builds(Eagle2Policy, verify_tokens=st.integers(2, 30), depth=st.integers(0, 4), top_k=st.integers(1, 5)),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
    st.sampled_from([None, 1, 2, 3]),
)
def test_the_tree_equals_the_dictionary_version(policy: Eagle2Policy, seeds: list[int], levels: int | None) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=7, levels=levels), len(seeds))
    for row, seed in enumerate(seeds):
        assert drafted_paths(draft, row) == tree_by_dictionary(ToyDrafter(seed, 7, levels), policy)


def test_the_published_default_equals_the_dictionary_version() -> None:
    draft = grow(Eagle2Policy(), toy_scorer(5, vocabulary=12), 1)
    assert drafted_paths(draft) == tree_by_dictionary(ToyDrafter(5, 12), Eagle2Policy())


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_is_the_best_closed_set_of_recorded_nodes(seed: int) -> None:
    recorded = recorded_by_dictionary(ToyDrafter(seed, 7), depth=3, top_k=3)
    draft = grow(Eagle2Policy(verify_tokens=9, depth=3, top_k=3), toy_scorer(seed, vocabulary=7), 1)
    mass = sum(np.exp(recorded[path]) for path in drafted_paths(draft)[1:])
    assert mass == pytest.approx(sum(sorted(np.exp(list(recorded.values())))[-8:]))


def test_top_one_is_a_chain() -> None:
    eagle = grow(Eagle2Policy(verify_tokens=60, depth=4, top_k=1), toy_scorer(3), 1)
    chain = grow(ChainPolicy(length=5), toy_scorer(3), 1)
    assert eagle.tokens.tolist() == chain.tokens.tolist() and eagle.parents.tolist() == chain.parents.tolist()


def test_a_budget_beyond_the_candidates_takes_them_all() -> None:
    draft = grow(Eagle2Policy(verify_tokens=60, depth=2, top_k=3), toy_scorer(3), 1)
    assert draft.tokens.shape == (1, 1 + 3 + 2 * 9)


def test_the_deepest_node_may_lie_one_below_the_named_depth() -> None:
    draft = grow(Eagle2Policy(verify_tokens=60, depth=2, top_k=3), toy_scorer(3), 1)
    assert draft.depths.max() == 3


def test_forwards_see_the_root_and_then_the_whole_beam() -> None:
    scorer = toy_scorer(3, vocabulary=12)
    draft = grow(Eagle2Policy(verify_tokens=60, depth=7, top_k=10), scorer, 1)
    assert draft.widths == tuple(scorer.widths) == (1, *(10,) * 7)


def test_rows_do_not_influence_each_other() -> None:
    policy = Eagle2Policy(verify_tokens=12, depth=3, top_k=3)
    together = grow(policy, toy_scorer(1, 2, 3), 3)
    for row, seed in enumerate((1, 2, 3)):
        assert drafted_paths(together, row) == drafted_paths(grow(policy, toy_scorer(seed), 1))
