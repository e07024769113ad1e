"""The best static tree for given acceptances: exact programme, best-first trees, their value and price.

    acceptance[d, r]  chance that child r of a node at depth d is the accepted one, given that the
                      node itself was; unconditional on its siblings, so a row sums to at most 1

One vector (ranks,) holds at every depth; a matrix (depth, ranks) allows trees as deep as it has
rows. A node's *reach* is the product of the acceptances on its path; a tree yields the sum of
its nodes' reaches per verify step, the root's 1 being the target's own token.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import PlanError
from ..growth.tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NestedTrees:
    """The best trees of 1, 2, .. nodes in one: the tree of n nodes is made of the first n.

    Attributes:
        parents: (nodes,), index of each node's parent; -1 for the root.
        ranks: (nodes,), which child of its parent each node is; 0 for the root.
        depths: (nodes,), edges to the root.
        reaches: (nodes,), chance that the node is accepted; never growing, 1 for the root.
    """

    parents: Ints
    ranks: Ints
    depths: Ints
    reaches: Floats

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def values(self) -> Floats:
        """Return (nodes + 1,): expected tokens per verify step of the tree of n nodes."""
        return np.concatenate(([0.0], self.reaches.cumsum()))

    @property
    def layer_widths(self) -> Ints:
        """Return (nodes + 1, layers): how many nodes of depth d have children in the tree of n nodes.

        These are the tokens of each drafter forward; layers that a tree does not draft have width 0.
        """
        openers = np.full(len(self), len(self))  # the node that first makes each node a parent
        np.minimum.at(openers, self.parents[1:], np.arange(1, len(self)))
        opened = np.flatnonzero(openers < len(self))
        widths = np.zeros((len(self) + 1, int(self.depths.max())), dtype=np.int64)
        np.add.at(widths, (openers[opened] + 1, self.depths[opened]), 1)
        total: Ints = widths.cumsum(axis=0)
        return total

    def tree(self, size: int) -> TokenTree:
        """Return the tree of `size` nodes.

        Raises:
            PlanError: there is no such tree.
        """
        if not 1 <= size <= len(self):
            raise PlanError(f"there are trees of 1 to {len(self)} nodes, got {size}; ask for one of them")
        return TokenTree(parents=tuple(self.parents[:size].tolist()), ranks=tuple(self.ranks[:size].tolist()))

    def trees(self, sizes: Iterable[int]) -> list[TokenTree]:
        """Return the trees of those sizes that there are."""
        return [self.tree(size) for size in sizes if size <= len(self)]


def nested_trees(acceptance: ArrayLike, budget: int, max_depth: int | None = None) -> NestedTrees:
    """Return the best trees of 1, 2, .. budget nodes, each the one before and one node more.

    The node of largest reach is added each time; ties go to the shallower, then the older node, then the lower rank.
    Reach never grows along a path, so the n largest reaches are a tree, and no tree of n nodes yields more. Siblings
    come likeliest first, in whatever order the ranks are. There are fewer trees when no node that could be accepted is
    left. Arguments and errors as in `best_tree_values`. Complexity: O(budget log budget).
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
        sizes: allowed tokens fed, e.g. those of captured graphs; None = every one. One token, plain decoding, always
            is.
        max_depth: most levels below the root; None = as deep as it pays.

    Raises:
        PlanError: an acceptance or a cost is impossible.
    """
    verify, draft = _curve("verify_ms", verify_ms), _curve("draft_ms", draft_ms)
    allowed = np.zeros(len(verify), dtype=np.bool_)
    allowed[[size for size in sizes if 1 <= size < len(verify)] if sizes is not None else slice(1, None)] = True
    best = PricedTree(tree=TokenTree(parents=(-1,), ranks=(0,)), tokens_per_round=1.0, round_ms=float(verify[1]))
    for depth in range(1, _depth_limit(len(verify) - 1, max_depth) + 1):
        nested = nested_trees(acceptance, len(verify) - 1, depth)
        if nested.depths.max() < depth:
            break  # the bound binds no more, so deeper ones give the same trees
        best = _faster(best, nested, allowed, verify, draft, host_ms)
    return best


def _faster(
    best: PricedTree, nested: NestedTrees, allowed: Mask, verify: Floats, draft: Floats, host_ms: float
) -> PricedTree:
    """Return the fastest of the nested trees of more than one node, or `best` if none is faster."""
    widths, last = nested.layer_widths, len(draft) - 1
    layers_ms = np.where(widths > 0, draft[np.minimum(widths, last)], 0.0).sum(axis=1)
    is_known = allowed[: len(widths)] & (widths.max(axis=1, initial=0) <= last)
    is_known[:2] = False
    if not is_known.any():
        return best
    round_ms = layers_ms + host_ms + verify[: len(widths)]
    per_token = np.where(is_known, round_ms, np.inf) / np.maximum(nested.values, 1.0)
    size = int(per_token.argmin())
    if not per_token[size] < best.ms_per_token:
        return best
    return PricedTree(
        tree=nested.tree(size), tokens_per_round=float(nested.values[size]), round_ms=float(round_ms[size])
    )


def _curve(name: str, values: ArrayLike) -> Floats:
    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or len(curve) < 2 or not np.all((curve[1:] >= 0.0) & np.isfinite(curve[1:])):
        raise PlanError(
            f"{name} needs a finite time of at least 0 ms per token count, got {curve}; entry 0 is not read"
        )
    return curve


def _solved(acceptance: ArrayLike, budget: int, max_depth: int | None) -> tuple[Floats, Ints]:
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
