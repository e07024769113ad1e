"""OPT-Tree against exhaustive search, a dictionary version, and the published loop that looks one layer late."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.strategies.base import grow
from spectune.planner.strategies.opt_tree import OptTreePolicy

from ...support.toy_drafter import ToyDrafter, drafted_paths, toy_scorer

VOCABULARY = 7
Path = tuple[int, ...]
Scored = dict[Path, np.float32]  # path log-probability by path
POLICIES = st.builds(
    OptTreePolicy,
    nodes=st.integers(1, 25),
    least_gain=st.sampled_from([-1.0, 0.0, 0.07, 0.13, 0.41, 0.83]),
    max_depth=st.integers(1, 5),
    children=st.integers(1, VOCABULARY),
)
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)


def below(toy: ToyDrafter, frontier: Scored, children: int) -> Scored:
    return {
        (*path, token): np.float32(score + step)
        for path, score in frontier.items()
        for token, step in toy.best(path, children)
    }


def best(found: Scored, count: int) -> list[Path]:
    return sorted(found, key=lambda path: -found[path])[:count]


def mass(found: Scored, paths: list[Path]) -> float:
    return math.fsum(math.exp(found[path]) for path in paths)


def grown_by_dictionary(toy: ToyDrafter, policy: OptTreePolicy) -> tuple[list[Path], list[int]]:
    """Return the tree in recorded order, and what each forward sees."""
    seen: Scored = {}
    frontier: Scored = {(): np.float32(0.0)}
    widths, gained = list[int](), 0.0
    for _ in range(policy.max_depth):
        widths.append(len(frontier))
        layer = below(toy, frontier, policy.children)
        seen |= layer
        before, gained = gained, mass(seen, best(seen, policy.nodes))
        if gained - before <= policy.least_gain:
            break
        frontier = {path: layer[path] for path in best(layer, policy.nodes)}
    kept = set(best(seen, policy.nodes))
    return [(), *(path for path in seen if path in kept)], widths


def published(toy: ToyDrafter, nodes: int, threshold: float, max_depth: int) -> tuple[set[Path], int]:
    """Re-tell the published loop: every forward first adds a layer, then weighs the layers before it."""
    frontier: Scored = {(): np.float32(0.0)}
    layers, weight = list[Scored](), 0.0
    while True:
        layer = below(toy, frontier, nodes)
        frontier = {path: layer[path] for path in best(layer, nodes)}
        layers.append(frontier)
        if len(layers) == 1:
            continue
        weighed: Scored = {path: score for older in layers[:-1] for path, score in older.items()}
        chosen = best(weighed, nodes)
        if mass(weighed, chosen) - weight > threshold and len(layers) < max_depth:
            weight = mass(weighed, chosen)
        else:
            return {(), *chosen}, len(layers)


@given(POLICIES, SEEDS)
def test_the_trees_and_widths_equal_the_dictionary_version(policy: OptTreePolicy, seeds: list[int]) -> None:
    scorer = toy_scorer(*seeds, vocabulary=VOCABULARY)
    draft = grow(policy, scorer, len(seeds))
    truth = [grown_by_dictionary(ToyDrafter(seed, VOCABULARY), policy) for seed in seeds]
    assert [drafted_paths(draft, row) for row in range(len(seeds))] == [tree for tree, _ in truth]
    longest = max(len(widths) for _, widths in truth)
    expected = tuple(max(w[i] for _, w in truth if i < len(w)) for i in range(longest))
    assert draft.widths == tuple(scorer.widths) == expected


@given(POLICIES, SEEDS, st.sampled_from([None, 1, 3]))
def test_a_sequence_of_a_batch_has_the_tree_it_has_alone(
    policy: OptTreePolicy, seeds: list[int], levels: int | None
) -> None:
    together = grow(policy, toy_scorer(*seeds, vocabulary=VOCABULARY, levels=levels), len(seeds))
    for row, seed in enumerate(seeds):
        alone = grow(policy, toy_scorer(seed, vocabulary=VOCABULARY, levels=levels), 1)
        size = int(together.sizes[row])
        assert size == alone.sizes[0]
        for field in ("tokens", "parents", "depths"):
            assert getattr(together, field)[row, :size].tolist() == getattr(alone, field)[0].tolist()


@pytest.mark.thinned
@pytest.mark.parametrize("nodes", [1, 5, 12, 30])
@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_gives_the_best_tree_of_that_depth_there_is(seed: int, nodes: int) -> None:
    toy, every = ToyDrafter(seed, 4), dict[Path, float]()
    for length in (1, 2, 3, 4):
        for path in product(range(4), repeat=length):
            steps = (dict(toy.best(path[:i], 4))[path[i]] for i in range(length))
            every[path] = math.fsum(float(step) for step in steps)
    truth = sorted(every, key=lambda path: -every[path])[:nodes]
    policy = OptTreePolicy(nodes=nodes, least_gain=0.0, max_depth=4, children=4)
    assert set(drafted_paths(grow(policy, toy_scorer(seed, vocabulary=4), 1))) == {(), *truth}


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("threshold", "max_depth"), [(0.5, 10), (0.2, 10), (0.05, 10), (0.05, 4), (0.0, 3), (0.9, 2)])
def test_the_published_loop_draws_the_same_tree_one_forward_and_one_layer_of_depth_later(
    threshold: float, max_depth: int, seed: int
) -> None:
    tree, forwards = published(ToyDrafter(seed, VOCABULARY), 6, threshold, max_depth)
    policy = OptTreePolicy(nodes=6, least_gain=threshold, max_depth=max_depth - 1, children=6)
    draft = grow(policy, toy_scorer(seed, vocabulary=VOCABULARY), 1)
    assert (set(drafted_paths(draft)), len(draft.widths)) == (tree, forwards - 1)


def test_a_gain_no_layer_reaches_drafts_one_layer() -> None:
    draft = grow(OptTreePolicy(nodes=3, least_gain=1.0, max_depth=10), toy_scorer(1, 2), 2)
    assert draft.widths == (1,) and draft.sizes.tolist() == [4, 4]


def test_more_children_than_the_tree_has_nodes_change_nothing() -> None:
    few, many = (
        grow(OptTreePolicy(nodes=4, least_gain=0.01, max_depth=6, children=children), toy_scorer(3, vocabulary=20), 1)
        for children in (4, 20)
    )
    assert drafted_paths(few) == drafted_paths(many)
