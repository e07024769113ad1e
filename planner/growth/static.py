"""Growing a static tree: the same ranks at every position, one forward per level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..policies import StaticPolicy
from .draft import ROOT_TOKEN, DraftBatch, Ints, LayerScorer, draft_of_one_shape, shared_rows
from .tree import TokenTree


def grow_static(policy: StaticPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return the policy's tree for every sequence, nodes in the tree's own order.

    Only nodes that have children are expanded; each forward asks for as many children as the
    highest rank below it needs.
    """
    levels = levels_of(policy.tree)
    children = scorer.root(levels[0].children)
    batch = len(children.tokens)
    tokens = np.full((batch, policy.tree.size), ROOT_TOKEN, dtype=np.int64)
    tokens[:, levels[0].nodes] = children.tokens[:, levels[0].slots, levels[0].ranks]
    for level in levels[1:]:
        parents, ranks = shared_rows(level.expanded_slots, batch), shared_rows(level.expanded_ranks, batch)
        children = scorer.expand(parents, ranks, level.children)
        tokens[:, level.nodes] = children.tokens[:, level.slots, level.ranks]
    widths = tuple(len(level.expanded_slots) for level in levels)
    return draft_of_one_shape(tokens, policy.tree.parents, policy.tree.depths, widths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One forward over a tree's inner nodes of one depth, and the nodes it fills below them.

    `nodes[i]` is child `ranks[i]` of the expanded node in slot `slots[i]`; the expanded nodes
    are children `expanded_ranks` of the previous level's slots `expanded_slots`.
    """

    expanded_slots: Ints
    expanded_ranks: Ints
    nodes: Ints
    slots: Ints
    ranks: Ints
    children: int


@lru_cache(maxsize=256)
def levels_of(tree: TokenTree) -> tuple[Level, ...]:
    """Return the forwards that grow the tree, top down; cached, a tree is grown every round."""
    levels: list[Level] = []
    above: tuple[int, ...] = (-1,)
    for inner in tree.inner_by_depth():
        nodes = [node for node in range(1, tree.size) if tree.parents[node] in inner]
        ranks = [tree.ranks[node] for node in nodes]
        levels.append(
            Level(
                expanded_slots=np.array([above.index(tree.parents[node]) for node in inner], dtype=np.int64),
                expanded_ranks=np.array([tree.ranks[node] for node in inner], dtype=np.int64),
                nodes=np.array(nodes, dtype=np.int64),
                slots=np.array([inner.index(tree.parents[node]) for node in nodes], dtype=np.int64),
                ranks=np.array(ranks, dtype=np.int64),
                children=max(ranks) + 1,
            )
        )
        above = inner
    return tuple(levels)
