"""The best static tree for given acceptances: exact programme, best-first trees, their value.

    acceptance[d, r]  chance that child r of a node at depth d is the accepted one, given that the
                      node itself was; unconditional on its siblings, so a row sums to at most 1

One vector (ranks,) holds at every depth; a matrix (depth, ranks) allows trees as deep as it has
rows. A node's *reach* is the product of the acceptances on its path; a tree yields the sum of
its nodes' reaches per verify step, the root's 1 being the target's own token.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import PlanError
from .tree import TokenTree

Floats = NDArray[np.float64]
Choices = NDArray[np.int64]

_ROUNDING = 1e-6  # acceptances estimated in float32 may sum to a little over 1


def expected_tokens(tree: TokenTree, acceptance: ArrayLike) -> float:
    """Return the mean number of tokens one verify of the tree yields, in [1, depth + 1].

    Args:
        acceptance: (ranks,) or (depth, ranks), covering every node of the tree.

    Raises:
        PlanError: the acceptance is no such array or does not cover a node.
    """
    rows = _acceptance_rows(acceptance, tree.depth)
    depths = tree.depths
    if len(rows) < tree.depth or max(tree.ranks) >= rows.shape[1]:
        raise PlanError(
            f"the tree has depth {tree.depth} and ranks up to {max(tree.ranks)}, acceptance covers {rows.shape} "
            "(depth, ranks); record more children or take a smaller tree"
        )
    reach = [1.0]
    for node in range(1, tree.size):
        parent = tree.parents[node]
        reach.append(reach[parent] * float(rows[depths[parent], tree.ranks[node]]))
    return sum(reach)


def best_tree_values(acceptance: ArrayLike, budget: int, max_depth: int | None = None) -> Floats:
    """Return the most tokens a draft tree of at most n nodes can yield, for n = 0..budget.

    tree[d][n]      = 1 + forest[d][n - 1, 0]                                root, then its children
    forest[d][n, r] = max over s of acceptance[d, r] * tree[d + 1][s] + forest[d][n - s, r + 1]

    for d = max_depth - 1 .. 0, where tree[d][0] = 0, tree[max_depth][n] = 1 and
    forest[d][n, ranks] = 0. s = 0 leaves child r out.

    Args:
        acceptance: (ranks,) or (depth, ranks).
        budget: most nodes in the tree, root included, >= 1.
        max_depth: most levels below the root; None = as deep as the budget or the matrix allows.

    Returns:
        (budget + 1,), expected tokens per verify step.

    Complexity: O(depth * ranks * budget^2).

    Source: Chen et al. 2024, arXiv:2402.12374, Sec. 3; acceptance by depth is an extension.
    """
    return _solved(acceptance, budget, max_depth)[0]


def best_tree(acceptance: ArrayLike, budget: int, max_depth: int | None = None) -> TokenTree:
    """Return a tree of at most `budget` nodes that yields `best_tree_values(...)[budget]`.

    It has fewer nodes only where no further node could be accepted. Nodes stand in depth-first
    order. Arguments and errors as in `best_tree_values`.
    """
    _, choices = _solved(acceptance, budget, max_depth)
    parents, ranks = [-1], [0]
    pending = [(0, 0, budget)]  # node, its depth, most nodes of its subtree
    while pending:
        node, depth, size = pending.pop()
        if depth == len(choices):
            continue
        left = size - 1
        for rank in range(choices.shape[2]):
            share = int(choices[depth, left, rank])
            left -= share
            if share:
                pending.append((len(parents), depth + 1, share))
                parents.append(node)
                ranks.append(rank)
    return TokenTree(parents=tuple(parents), ranks=tuple(ranks))


def nested_trees(acceptance: ArrayLike, budget: int, max_depth: int | None = None) -> tuple[TokenTree, ...]:
    """Return the best trees of 1, 2, .. budget nodes, each the one before and one node more.

    The node of largest reach is added each time; ties go to the shallower, then the older node.
    Reach never grows along a path, so the n largest reaches are a tree, and no tree of n nodes
    yields more. The tuple ends early when no node that could be accepted is left.
    Arguments and errors as in `best_tree_values`. Complexity: O(budget * ranks * log).
    """
    rows = _acceptance_rows(acceptance, _depth_limit(budget, max_depth))
    parents, ranks, trees = [-1], [0], [TokenTree(parents=(-1,), ranks=(0,))]
    waiting: list[tuple[float, int, int, int]] = []  # -reach, depth, parent, rank
    _push_children(waiting, rows, node=0, depth=0, reach=1.0)
    while waiting and len(parents) < budget:
        minus_reach, depth, parent, rank = heapq.heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        trees.append(TokenTree(parents=tuple(parents), ranks=tuple(ranks)))
        _push_children(waiting, rows, node=len(parents) - 1, depth=depth, reach=-minus_reach)
    return tuple(trees)


def _push_children(
    waiting: list[tuple[float, int, int, int]], rows: Floats, node: int, depth: int, reach: float
) -> None:
    if depth < len(rows):
        for rank, chance in enumerate(rows[depth].tolist()):
            if reach * chance > 0.0:
                heapq.heappush(waiting, (-reach * chance, depth + 1, node, rank))


def _solved(acceptance: ArrayLike, budget: int, max_depth: int | None) -> tuple[Floats, Choices]:
    """Return tree[0] and the maximising s per (depth, nodes of the forest, rank)."""
    rows = _acceptance_rows(acceptance, _depth_limit(budget, max_depth))
    depths, ranks = rows.shape
    choices = np.zeros((depths, budget + 1, ranks), dtype=np.int64)
    rest = np.arange(budget + 1)[:, None] - np.arange(budget + 1)  # n - s; negative = impossible
    tree = np.minimum(np.arange(budget + 1.0), 1.0)
    for depth in reversed(range(depths)):
        forest = np.zeros(budget + 1)
        for rank in reversed(range(ranks)):
            value = np.where(rest >= 0, rows[depth, rank] * tree + forest[rest], -np.inf)
            choices[depth, :, rank] = value.argmax(axis=1)
            forest = value.max(axis=1)
        tree = np.concatenate(([0.0], 1.0 + forest[:-1]))
    return tree, choices


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
