"""The best static trees for given acceptances, each the one before and one node more.

    acceptance[d, r]  chance that child r of a node at depth d is the accepted one, given that the
                      node itself was; unconditional on its siblings, so a row sums to at most 1

One vector (ranks,) holds at every depth; a matrix (depth, ranks) limits the depth to its rows. A node's *reach* is the
product of the acceptances on its path. A tree yields the sum of its nodes' reaches per verify step; the root's 1 is the
target's own token.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import PlanError
from .tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SIZES = (*range(3, 13), 14, 16, 20, 24, 28, 32, 40, 48, 60, 80, 100, 128)
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10)
_ROUNDING = 1e-6  # acceptances estimated in float32 may sum to a little over 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NestedTrees:
    """The best trees of 1, 2, .. nodes in one: the tree of n nodes is made of the first n; arrays are (nodes,)."""

    parents: Ints  # index of each node's parent; -1 for the root
    ranks: Ints  # which child of its parent each node is; 0 for the root
    depths: Ints  # edges to the root
    reaches: Floats  # chance that the node is accepted; never growing, 1 for the root

    def __len__(self) -> int:
        return len(self.parents)

    def tree(self, size: int) -> TokenTree:
        """Return the tree of `size` nodes; PlanError where there is none."""
        if not 1 <= size <= len(self):
            raise PlanError(f"there are trees of 1 to {len(self)} nodes, got {size}; ask for one of them")
        return TokenTree(parents=tuple(self.parents[:size].tolist()), ranks=tuple(self.ranks[:size].tolist()))

    def trees(self, sizes: Iterable[int]) -> list[TokenTree]:
        """Return the trees of those sizes that there are."""
        return [self.tree(size) for size in sizes if size <= len(self)]


def nested_trees(acceptance: ArrayLike, budget: int, max_depth: int | None = None) -> NestedTrees:
    """Return the best trees of 1, 2, .. budget nodes, root included, each the one before and one node more.

    The node of largest reach is added each time; ties go to the shallower, then the older node, then the lower rank.
    Reach never grows along a path, so the n largest reaches are a tree, and no tree of n nodes yields more. Siblings
    come likeliest first, whatever the order of ranks. There are fewer trees when no node that could be accepted is
    left. O(budget log budget).

    `acceptance` is (ranks,) or (depth, ranks); `max_depth` None is as deep as budget or matrix allow. PlanError: an
    acceptance is impossible, or the budget is below 1.
    """
    rows = _acceptance_rows(acceptance, _depth_limit(budget, max_depth))
    likeliest = np.argsort(-rows, axis=1, kind="stable")
    by_chance = [
        [(rank, chance) for rank, chance in zip(order, row[order].tolist(), strict=True) if chance > 0.0]
        for order, row in zip(likeliest.tolist(), rows, strict=True)
    ]
    by_chance.append([])  # what a node of the last depth has below it
    parents, ranks, depths, reaches = [-1], [0], [0], [1.0]
    waiting: list[tuple[float, int, int, int, int]] = []  # -reach, depth, parent, rank, place among its siblings

    def push(parent: int, place: int) -> None:
        depth = depths[parent]
        if place < len(by_chance[depth]):
            rank, chance = by_chance[depth][place]
            if (reach := reaches[parent] * chance) > 0.0:
                heapq.heappush(waiting, (-reach, depth + 1, parent, rank, place))

    push(0, 0)
    while waiting and len(parents) < budget:
        minus_reach, depth, parent, rank, place = heapq.heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        depths.append(depth)
        reaches.append(-minus_reach)
        push(parent, place + 1)
        push(len(parents) - 1, 0)
    return NestedTrees(
        parents=np.array(parents), ranks=np.array(ranks), depths=np.array(depths), reaches=np.array(reaches)
    )


def _depth_limit(budget: int, max_depth: int | None) -> int:
    if budget < 1 or (max_depth is not None and max_depth < 0):
        raise PlanError(f"a tree needs a budget >= 1 and a max_depth >= 0 or None, got {budget} and {max_depth}")
    return budget - 1 if max_depth is None else min(max_depth, budget - 1)


def _acceptance_rows(acceptance: ArrayLike, depth: int) -> Floats:
    """Return (<= depth, ranks): one row per depth, a single vector repeated."""
    values = np.asarray(acceptance, dtype=np.float64)
    if values.ndim not in (1, 2) or values.size == 0:
        raise PlanError(f"acceptance must be (ranks,) or (depth, ranks) and not empty, got shape {values.shape}")
    if not (np.all(values >= 0.0) and np.all(values.sum(axis=-1) <= 1.0 + _ROUNDING)):
        raise PlanError(
            f"acceptances must be at least 0 and sum to at most 1 per depth, got {values.tolist()}; "
            "pass unconditional probabilities per child"
        )
    rows = values if values.ndim == 2 else np.broadcast_to(values, (depth, len(values)))
    return rows[:depth]


def static_trees(acceptance: Floats, most_tokens: int = max(SIZES)) -> list[TokenTree]:
    """Return the best trees, no chains, of many sizes and depths, each once; acceptance as for `nested_trees`."""
    sizes = [size for size in SIZES if size <= most_tokens]
    trees: dict[TokenTree, None] = {}
    for max_depth in DEPTHS if sizes else ():
        nested = nested_trees(acceptance, max(sizes), max_depth)
        trees |= {tree: None for tree in nested.trees(sizes) if tree.size > tree.depth + 1}
    return list(trees)
