"""Token trees: what they refuse and what they say about themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.tree import TokenTree

FORK = TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 2, 0, 1, 0))


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 12))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    ranks = [0] + [parents[1:node].count(parents[node]) for node in range(1, size)]
    return TokenTree(parents=tuple(parents), ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [
        ((), ()),  # no root
        ((-1, 0), (0,)),  # a rank is missing
        ((0, 0), (0, 0)),  # the root has a parent
        ((-1, 0), (1, 0)),  # the root is a second child of nothing
        ((-1, 1), (0, 0)),  # a node is its own parent
        ((-1, 2, 0), (0, 0, 1)),  # a child before its parent
        ((-1, -1), (0, 0)),  # two roots
        ((-1, 0, 0), (0, 1, 1)),  # siblings with one rank
        ((-1, 0), (0, -1)),  # a negative rank
    ],
)
def test_a_malformed_tree_is_refused(parents: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    with pytest.raises(PlanError):
        TokenTree(parents=parents, ranks=ranks)


def test_a_refusal_names_the_node_and_the_parent_it_saw() -> None:
    with pytest.raises(PlanError, match=r"parent of node 1 .* got 7"):
        TokenTree(parents=(-1, 7), ranks=(0, 0))


def test_size_counts_the_root() -> None:
    assert FORK.size == 6


def test_depths_count_edges_from_the_root() -> None:
    assert FORK.depths == (0, 1, 1, 2, 2, 3)
    assert FORK.depth == 3


def test_the_root_alone_has_depth_zero() -> None:
    assert TokenTree(parents=(-1,), ranks=(0,)).depth == 0


def test_children_stand_in_index_order() -> None:
    assert [FORK.children(node) for node in range(4)] == [(1, 2), (3, 4), (), (5,)]


def test_inner_nodes_are_listed_by_depth() -> None:
    assert FORK.inner_by_depth() == ((0,), (1,), (3,))


def test_the_root_alone_has_no_inner_nodes() -> None:
    assert TokenTree(parents=(-1,), ranks=(0,)).inner_by_depth() == ()


@given(trees())
def test_inner_nodes_are_exactly_those_with_children(tree: TokenTree) -> None:
    inner = [node for nodes in tree.inner_by_depth() for node in nodes]
    assert sorted(inner) == [node for node in range(tree.size) if tree.children(node)]
