"""Growing a static tree: the same ranks at every position, one forward per level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...errors import PlanError
from ..kernels.static import fill
from ..records.draft import ROOT_TOKEN, Children, DraftBatch, Ints, LayerScorer, shared_rows
from ..records.tree import TokenTree
from ..strategies.static import StaticPolicy


def grow_static(policy: StaticPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return the policy's tree for every sequence, nodes in the tree's own order.

    Only nodes that have children are expanded; each forward asks for as many children as the
    highest rank below it needs.
    """
    levels = levels_of(policy.tree)
    children = scorer.root(levels[0].children)
    shape = shape_of(policy.tree, len(children.tokens))
    tokens = np.empty(shape.parents.shape, dtype=np.int64)
    tokens[:, 0] = ROOT_TOKEN
    _fill(children, levels[0], tokens)
    for level, slots, ranks in zip(levels[1:], shape.slots, shape.ranks, strict=True):
        _fill(scorer.expand(slots, ranks, level.children), level, tokens)
    return DraftBatch(tokens=tokens, parents=shape.parents, depths=shape.depths, sizes=shape.sizes, widths=shape.widths)


def _fill(children: Children, level: Level, tokens: Ints) -> None:
    """Write the tokens of the nodes below a level's inner ones."""
    require_children(level.children, children.tokens.shape[2])
    fill(np.ascontiguousarray(children.tokens), level.picks, tokens)


def require_children(asked: int, known: int) -> None:
    """Raise PlanError where a static tree asks for more children of a node than the drafter has tokens."""
    if known < asked:
        raise PlanError(
            f"the static tree needs {asked} children of a node and the drafter has {known} tokens; "
            "take a tree of lower ranks"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One forward over a tree's inner nodes of one depth, and the nodes it fills below them.

    The expanded nodes are children `expanded_ranks` of the previous level's slots `expanded_slots`. `picks` (3, nodes)
    tells of the nodes below them the slot of each one's parent, its rank, and its place in the tree.
    """

    expanded_slots: Ints
    expanded_ranks: Ints
    picks: Ints
    children: int


@lru_cache(maxsize=256)
def levels_of(tree: TokenTree) -> tuple[Level, ...]:
    """Return the forwards that grow the tree, top down; cached, a tree is grown every round."""
    levels: list[Level] = []
    above: tuple[int, ...] = (-1,)
    for inner in tree.inner_by_depth():
        nodes = [node for node in range(1, tree.size) if tree.parents[node] in inner]
        slots, ranks = [inner.index(tree.parents[node]) for node in nodes], [tree.ranks[node] for node in nodes]
        levels.append(
            Level(
                expanded_slots=np.array([above.index(tree.parents[node]) for node in inner], dtype=np.int64),
                expanded_ranks=np.array([tree.ranks[node] for node in inner], dtype=np.int64),
                picks=np.array([slots, ranks, nodes], dtype=np.int64),
                children=max(ranks) + 1,
            )
        )
        above = inner
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is the same in every draft of a tree for so many sequences; nobody writes to it.

    `slots` and `ranks` hold, of every level but the first, what is expanded, (batch, width) each; the others are a
    draft's.
    """

    slots: tuple[Ints, ...]
    ranks: tuple[Ints, ...]
    parents: Ints
    depths: Ints
    sizes: Ints
    widths: tuple[int, ...]


@lru_cache(maxsize=256)
def shape_of(tree: TokenTree, batch: int) -> Shape:
    """Return the shape of a tree's drafts; cached, as its levels are."""
    levels = levels_of(tree)
    return Shape(
        slots=tuple(shared_rows(level.expanded_slots, batch) for level in levels[1:]),
        ranks=tuple(shared_rows(level.expanded_ranks, batch) for level in levels[1:]),
        parents=shared_rows(tree.parents, batch),
        depths=shared_rows(tree.depths, batch),
        sizes=np.full(batch, tree.size, dtype=np.int64),
        widths=tuple(len(level.expanded_slots) for level in levels),
    )
