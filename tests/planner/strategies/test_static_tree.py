"""Static trees: the programme against enumeration, best-first against the programme."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.best_trees import nested_trees
from spectune.planner.records.tree import TokenTree

from ...support.best_trees import (
    best_static_tree,
    best_tree,
    best_tree_values,
    expected_tokens,
    layer_widths,
    values_of,
)
from ...support.cost_curves import KINDS, CurveKind, random_costs
from ...support.ordered_trees import ordered_trees, tree_depth, tree_value

VECTORS = [[0.9], [0.6, 0.2], [0.5, 0.3, 0.1], [1.0, 0.0], [0.1, 0.7], [0.2, 0.0, 0.5]]
MATRICES = [
    [[0.6, 0.2], [0.8, 0.1], [0.3, 0.3]],
    [[0.1, 0.7, 0.1], [0.9, 0.05, 0.0], [0.0, 0.2, 0.6], [0.5, 0.4, 0.1]],
]

Shape = tuple[tuple[int, "Shape"], ...]  # a node's children: rank and what hangs below


@cache
def all_shapes(nodes: int, ranks: int) -> list[Shape]:
    """Every tree of `nodes` nodes whose siblings have different ranks."""
    counts = range(min(ranks, nodes - 1) + 1)
    sibling_sets = [chosen for count in counts for chosen in combinations(range(ranks), count)]
    return [forest for chosen in sibling_sets for forest in all_forests(nodes - 1, chosen, ranks)]


def all_forests(nodes: int, chosen: tuple[int, ...], ranks: int) -> Iterator[Shape]:
    if not chosen:
        if nodes == 0:
            yield ()
        return
    for first in range(1, nodes + 1):
        for below in all_shapes(first, ranks):
            for rest in all_forests(nodes - first, chosen[1:], ranks):
                yield ((chosen[0], below), *rest)


def value(shape: Shape, acceptance: list[list[float]], depth: int = 0) -> float:
    """Expected tokens by recursion over the shape; acceptance beyond the last row is zero."""
    if depth >= len(acceptance):
        return 1.0
    return 1.0 + sum(acceptance[depth][rank] * value(below, acceptance, depth + 1) for rank, below in shape)


def best_by_enumeration(acceptance: list[list[float]], nodes: int) -> float:
    return max(value(shape, acceptance) for shape in all_shapes(nodes, len(acceptance[0])))


@pytest.mark.thinned
@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("acceptance", VECTORS[:4])
def test_values_equal_enumeration_of_all_trees(acceptance: list[float], nodes: int) -> None:
    truth = best_by_enumeration([acceptance] * 8, nodes)
    assert best_tree_values(acceptance, nodes)[nodes] == pytest.approx(truth, abs=1e-12)


@pytest.mark.thinned
@pytest.mark.parametrize("nodes", range(1, 8))
@pytest.mark.parametrize("acceptance", VECTORS[4:])
def test_values_equal_enumeration_when_a_later_child_is_likelier(acceptance: list[float], nodes: int) -> None:
    truth = best_by_enumeration([acceptance] * 8, nodes)
    assert best_tree_values(acceptance, nodes)[nodes] == pytest.approx(truth, abs=1e-12)


@pytest.mark.thinned
@pytest.mark.parametrize("nodes", range(1, 8))
@pytest.mark.parametrize("acceptance", MATRICES)
def test_values_by_rank_and_depth_equal_enumeration(acceptance: list[list[float]], nodes: int) -> None:
    truth = max(best_by_enumeration(acceptance, fewer) for fewer in range(1, nodes + 1))
    assert best_tree_values(acceptance, nodes)[nodes] == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("max_depth", range(4))
def test_values_with_a_depth_bound_equal_enumeration(max_depth: int) -> None:
    acceptance = [0.5, 0.3, 0.1]
    truth = max(best_by_enumeration([acceptance] * max_depth or [[0.0] * 3], fewer) for fewer in range(1, 8))
    assert best_tree_values(acceptance, 7, max_depth)[7] == pytest.approx(truth, abs=1e-12)


def test_values_equal_the_closed_form_of_a_chain() -> None:
    values = best_tree_values([0.8], budget=20)
    assert values[1:] == pytest.approx([(1 - 0.8**n) / (1 - 0.8) for n in range(1, 21)])


@pytest.mark.parametrize("acceptance", [*VECTORS, *MATRICES])
def test_the_recovered_tree_yields_the_value(acceptance: list[float]) -> None:
    values = best_tree_values(acceptance, 24)
    for budget in (1, 2, 5, 24):
        tree = best_tree(acceptance, budget)
        assert tree.size <= budget
        assert expected_tokens(tree, acceptance) == pytest.approx(values[budget])


def test_the_recovered_tree_uses_the_whole_budget_when_every_node_helps() -> None:
    assert best_tree([0.6, 0.2, 0.1], 40).size == 40


def test_the_recovered_tree_keeps_its_depth_bound() -> None:
    assert best_tree([0.9, 0.05], 20, max_depth=3).depth == 3


def test_a_certain_first_child_gives_a_chain() -> None:
    assert best_tree([1.0, 0.0], 6).parents == (-1, 0, 1, 2, 3, 4)


def test_nodes_that_cannot_be_accepted_are_left_out() -> None:
    assert best_tree([[0.7, 0.0], [0.5, 0.0]], 9).size == 3


@st.composite
def acceptances(draw: st.DrawFn) -> list[list[float]]:
    ranks, depth = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    weights = st.lists(st.floats(0.01, 1.0), min_size=ranks, max_size=ranks)
    rows = [sorted(draw(weights), reverse=True) for _ in range(depth)]
    scale = draw(st.floats(0.3, 1.0))
    return [[scale * weight / sum(row) for weight in row] for row in rows]


@given(acceptances(), st.integers(1, 24))
def test_nested_trees_yield_the_values_of_the_programme(acceptance: list[list[float]], budget: int) -> None:
    nested = nested_trees(acceptance, budget)
    assert values_of(nested) == pytest.approx(best_tree_values(acceptance, budget)[: len(nested) + 1])


@pytest.mark.parametrize("acceptance", [*VECTORS, *MATRICES])
def test_nested_trees_yield_the_values_of_the_programme_in_any_order_of_ranks(acceptance: list[float]) -> None:
    nested = nested_trees(acceptance, 30)
    assert values_of(nested) == pytest.approx(best_tree_values(acceptance, 30)[: len(nested) + 1])


@pytest.mark.parametrize("max_depth", [1, 2, 5])
def test_nested_trees_keep_their_depth_bound_and_lose_nothing(max_depth: int) -> None:
    nested = nested_trees([0.5, 0.1, 0.3], 40, max_depth)
    assert nested.depths.max() == max_depth
    assert values_of(nested) == pytest.approx(best_tree_values([0.5, 0.1, 0.3], 40, max_depth)[: len(nested) + 1])


@given(acceptances(), st.integers(2, 24))
def test_a_nested_tree_yields_what_its_reaches_say(acceptance: list[list[float]], budget: int) -> None:
    nested = nested_trees(acceptance, budget)
    for size in {1, len(nested) // 2 + 1, len(nested)}:
        assert nested.tree(size).size == size
        assert expected_tokens(nested.tree(size), acceptance) == pytest.approx(values_of(nested)[size])


@given(acceptances(), st.integers(2, 24))
def test_each_nested_tree_is_the_one_before_and_a_node(acceptance: list[list[float]], budget: int) -> None:
    nested = nested_trees(acceptance, budget)
    for smaller, larger in pairwise(nested.trees(range(1, budget + 1))):
        assert larger.parents[:-1] == smaller.parents and larger.ranks[:-1] == smaller.ranks


@given(acceptances(), st.integers(2, 24))
def test_layer_widths_are_the_inner_nodes_by_depth(acceptance: list[list[float]], budget: int) -> None:
    nested = nested_trees(acceptance, budget)
    for size in range(1, len(nested) + 1):
        inner = [len(nodes) for nodes in nested.tree(size).inner_by_depth()]
        assert layer_widths(nested)[size].tolist() == inner + [0] * (layer_widths(nested).shape[1] - len(inner))


@pytest.mark.parametrize("seed", range(4))
def test_nested_trees_equal_enumeration_of_all_ordered_trees_to_nine_nodes(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [np.sort(random.dirichlet(np.ones(6)))[:0:-1].tolist() for _ in range(random.integers(2, 9))]
    nested = nested_trees(rows, 9)
    for nodes in range(1, 10):
        truth = max(tree_value(tree, rows) for tree in ordered_trees(nodes))
        assert values_of(nested)[nodes] == pytest.approx(truth, abs=1e-12)


def test_nested_trees_end_when_the_acceptances_do() -> None:
    assert len(nested_trees([[0.5, 0.2], [0.5, 0.2]], 50)) == 7


def test_a_nested_tree_beyond_the_last_is_refused() -> None:
    with pytest.raises(PlanError, match="1 to 3 nodes"):
        nested_trees([0.5, 0.2], 3).tree(4)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_static_tree_is_the_fastest_of_all_ordered_trees(kind: CurveKind, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [np.sort(random.dirichlet(np.ones(4)))[:0:-1].tolist() for _ in range(8)]
    verify, layer_ms, host_ms = random_costs(kind, random, 8), random.uniform(0.0, 0.3), random.uniform(0.0, 0.2)
    found = best_static_tree(rows, verify, [layer_ms] * 9, host_ms=host_ms)
    rivals = [
        (tree_depth(tree) * layer_ms + host_ms + verify[nodes]) / tree_value(tree, rows)
        for nodes in range(2, 9)
        for tree in ordered_trees(nodes)
    ]
    assert found.ms_per_token == pytest.approx(min([verify[1], *rivals]))


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_static_tree_pays_for_the_widths_of_its_layers(kind: CurveKind, seed: int) -> None:
    random = np.random.default_rng(seed)
    acceptance, verify = [0.5, 0.2, 0.15], random_costs(kind, random, 20)
    draft = random.uniform(0.01, 0.1) * random_costs("inverted", random, 20)
    best = verify[1]
    for depth in range(1, 20):
        for tree in nested_trees(acceptance, 20, depth).trees(range(2, 21)):
            layers = sum(draft[len(inner)] for inner in tree.inner_by_depth())
            best = min(best, (layers + verify[tree.size]) / expected_tokens(tree, acceptance))
    assert best_static_tree(acceptance, verify, draft).ms_per_token == pytest.approx(best)


def test_the_best_static_tree_reaches_the_end_of_a_tile() -> None:
    verify = [0.0, *[10.0] * 8, *[20.0] * 8]
    assert best_static_tree([0.6, 0.2, 0.1], verify, [0.1] * 17).tree.size == 8


def test_the_best_static_tree_is_none_where_verification_is_dear() -> None:
    found = best_static_tree([0.6, 0.2], [0.0, *(10.0 * n for n in range(1, 9))], [0.1] * 9)
    assert found.tree.size == 1 and found.ms_per_token == 10.0


def test_the_best_static_tree_has_an_allowed_size() -> None:
    found = best_static_tree([0.6, 0.2, 0.1], [10.0] * 40, [0.1] * 40, sizes=(4, 7, 64))
    assert found.tree.size == 7


def test_the_best_static_tree_has_no_layer_wider_than_the_drafter_was_timed() -> None:
    found = best_static_tree([0.4, 0.3, 0.2], [10.0] * 40, [0.1, 0.1, 0.1])
    assert max(len(inner) for inner in found.tree.inner_by_depth()) <= 2


def test_the_best_static_tree_keeps_its_depth_bound() -> None:
    assert best_static_tree([0.9, 0.05], [10.0] * 30, [0.1] * 30, max_depth=3).tree.depth == 3


def test_expected_tokens_equal_simulated_walks() -> None:
    tree, acceptance = TokenTree(parents=(-1, 0, 0, 1, 2), ranks=(0, 0, 2, 1, 0)), [0.5, 0.2, 0.1]
    random, rounds, tokens = np.random.default_rng(0), 40_000, 0
    edges = {(parent, rank): node for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    for _ in range(rounds):
        node: int | None = 0
        while node is not None:
            tokens += 1
            node = edges.get((node, int(random.choice(4, p=[*acceptance, 0.2]))))
    assert expected_tokens(tree, acceptance) == pytest.approx(tokens / rounds, abs=0.02)


@pytest.mark.parametrize("acceptance", [[], [[[0.5]]], [0.7, 0.4], [-0.1], [float("nan")]])
def test_impossible_acceptances_are_refused(acceptance: list[float]) -> None:
    with pytest.raises(PlanError):
        nested_trees(acceptance, 4)


def test_an_empty_budget_is_refused() -> None:
    with pytest.raises(PlanError, match="budget"):
        nested_trees([0.5], 0)
