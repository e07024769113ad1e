"""Every ordered tree, and what one yields: no code shared with the planner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

OrderedTree = tuple["OrderedTree", ...]  # a node's children; the one at place r is its child of rank r


@cache
def ordered_trees(nodes: int) -> tuple[OrderedTree, ...]:
    """Every ordered tree of so many nodes: Catalan(nodes - 1) of them."""
    return tuple(_forests(nodes - 1))


def _forests(nodes: int) -> Iterator[OrderedTree]:
    if nodes == 0:
        yield ()
        return
    for first in range(1, nodes + 1):
        for tree in ordered_trees(first):
            for rest in _forests(nodes - first):
                yield (tree, *rest)


def tree_value(tree: OrderedTree, acceptance: Sequence[Sequence[float]], depth: int = 0) -> float:
    """Expected tokens by recursion; acceptance beyond the last row or rank is zero."""
    if depth >= len(acceptance):
        return 1.0
    row = acceptance[depth]
    return 1.0 + sum(row[r] * tree_value(child, acceptance, depth + 1) for r, child in enumerate(tree[: len(row)]))


def tree_depth(tree: OrderedTree) -> int:
    """Edges to the deepest node."""
    return 1 + max(map(tree_depth, tree)) if tree else 0
