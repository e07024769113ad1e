"""The best static trees by dynamic programme, and the fastest of them: what the planner's nested trees are held to.

Acceptances are as `search/static_tree.py` has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectune.planner.records.best_trees import NestedTrees, nested_trees
from spectune.planner.records.tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedTree:
    """A tree and what a round of it yields and takes."""

    tree: TokenTree
    tokens_per_round: float
    round_ms: float

    @property
    def ms_per_token(self) -> float:
        """Milliseconds per token."""
        return self.round_ms / self.tokens_per_round


def expected_tokens(tree: TokenTree, acceptance: ArrayLike) -> float:
    """Return the mean number of tokens one verify of a tree yields, in [1, depth + 1]."""
    rows, depths, reach = _rows(acceptance, tree.depth), tree.depths, [1.0]
    for parent, rank in zip(tree.parents[1:], tree.ranks[1:], strict=True):
        reach.append(reach[parent] * float(rows[depths[parent], rank]))
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

    It has fewer nodes only where no further node could be accepted. Nodes stand in depth-first order.
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


def values_of(nested: NestedTrees) -> Floats:
    """Return (nodes + 1,): expected tokens per verify step of the tree of n nodes."""
    return np.concatenate(([0.0], nested.reaches.cumsum()))


def layer_widths(nested: NestedTrees) -> Ints:
    """Return (nodes + 1, layers): how many nodes of depth d have children in the tree of n nodes."""
    openers = np.full(len(nested), len(nested))  # the node that first makes each node a parent
    np.minimum.at(openers, nested.parents[1:], np.arange(1, len(nested)))
    opened = np.flatnonzero(openers < len(nested))
    widths = np.zeros((len(nested) + 1, int(nested.depths.max())), dtype=np.int64)
    np.add.at(widths, (openers[opened] + 1, nested.depths[opened]), 1)
    total: Ints = widths.cumsum(axis=0)
    return total


def best_static_tree(
    acceptance: ArrayLike,
    verify_ms: ArrayLike,
    draft_ms: ArrayLike,
    *,
    host_ms: float = 0.0,
    sizes: Iterable[int] | None = None,
    max_depth: int | None = None,
) -> PricedTree:
    """Return the fastest of the best trees of every size and depth bound.

        minimise over n, d of ( sum over layers of draft_ms[width] + host_ms + verify_ms[n] ) / F(n, d)

    F(n, d) is what the best tree of n nodes and depth at most d yields, the widths are those of its layers with
    children. Every n and d is priced on the tables as they are, so steps and inversions are seen. No tree at all is
    faster where a layer costs the same at every width; where it does not, a narrower tree that yields less may be, and
    is not tried.

    Args:
        acceptance: (ranks,) or (depth, ranks).
        verify_ms: index = tokens fed to the target, root included; entry 0 is not read. It bounds the tree's size.
        draft_ms: index = tokens fed to the drafter; entry 0 is not read. Trees with a wider layer are left out.
        host_ms: of every round that drafts.
        sizes: allowed tokens fed; None = every one. One token, plain decoding, always is.
        max_depth: most levels below the root; None = as deep as it pays.
    """
    verify, draft = np.asarray(verify_ms, dtype=np.float64), np.asarray(draft_ms, dtype=np.float64)
    most = len(verify) - 1
    allowed = [size for size in (range(2, most + 1) if sizes is None else sizes) if 2 <= size <= most]
    best = PricedTree(tree=TokenTree(parents=(-1,), ranks=(0,)), tokens_per_round=1.0, round_ms=float(verify[1]))
    for depth in range(1, most if max_depth is None else max_depth + 1):
        nested = nested_trees(acceptance, most, depth)
        if nested.depths.max() < depth:
            break  # the bound binds no more, so deeper ones give the same trees
        values, widths = values_of(nested), layer_widths(nested)
        layers_ms = np.where(widths > 0, draft[np.minimum(widths, len(draft) - 1)], 0.0).sum(axis=1)
        round_ms = layers_ms + host_ms + verify[: len(widths)]
        per_token = round_ms / np.maximum(values, 1.0)
        known = [size for size in allowed if size <= len(nested) and widths[size].max() < len(draft)]
        if known:
            size = min(known, key=lambda size: float(per_token[size]))
            found = PricedTree(
                tree=nested.tree(size), tokens_per_round=float(values[size]), round_ms=float(round_ms[size])
            )
            best = min(best, found, key=lambda one: one.ms_per_token)
    return best


def _solved(acceptance: ArrayLike, budget: int, max_depth: int | None) -> tuple[Floats, Ints]:
    """Return tree[0] and the maximising s per (depth, nodes of the forest, rank)."""
    rows = _rows(acceptance, budget - 1 if max_depth is None else min(max_depth, budget - 1))
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


def _rows(acceptance: ArrayLike, depth: int) -> Floats:
    """Return (<= depth, ranks): one row per depth, a single vector repeated."""
    values = np.asarray(acceptance, dtype=np.float64)
    return values[:depth] if values.ndim == 2 else np.broadcast_to(values, (depth, len(values)))
