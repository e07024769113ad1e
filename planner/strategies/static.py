"""A tree of one shape: the same ranks at every position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..records.best_trees import DEPTHS, static_trees
from ..records.crossfit import EVERYWHERE, HALVES, folds_of, half_of
from ..records.draft import Array, Asked, Bools, Growth
from ..records.ops import Ops
from ..records.recording import UNKNOWN, Recorded, Recording, path_ranks
from ..records.results import PositionResults, of_one_size
from ..records.tree import TokenTree
from .base import Strategy, Trees, require_at_least
from .naming import named_tree
from .offers import Graded, Limits

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPolicy(Strategy):
    """Draft the same tree of ranks at every position."""

    tree: TokenTree
    kind: Literal["static"] = "static"

    complexity: ClassVar = 1
    in_hybrids: ClassVar = True
    grid_place: ClassVar = 6
    names: ClassVar = {r"static tree of (?P<nodes>\d+), depth \d+": named_tree("fixed")}

    def __post_init__(self) -> None:
        require_at_least("static tree size", self.tree.size, 2)

    @property
    def code(self) -> str:
        return f"static tree of {self.tree.size}, depth {self.tree.depth}"

    @property
    def max_verify_tokens(self) -> int:
        return self.tree.size

    @property
    def widths(self) -> tuple[int, ...]:
        return shape_of(self.tree).widths

    @property
    def children(self) -> int:
        return max(self.tree.ranks) + 1

    @property
    def fixed_tree(self) -> TokenTree:
        return self.tree

    @property
    def written(self) -> str:
        tree = f"TokenTree(parents={self.tree.parents!r}, ranks={self.tree.ranks!r})"
        return f"StaticPolicy(tree={tree}, kind='static')"

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Return the same tree for every sequence, nodes in the tree's own order.

        Only nodes with children are expanded; each forward yields as many children as the highest rank below it needs.
        PlanError if the tree has children of ranks beyond the drafter's vocabulary.
        """
        shape, tokens = shape_of(self.tree), list[Array]()
        for level in shape.levels:
            asked = (ops.rows(level.slots), ops.rows(level.ranks)) if tokens else ()
            below = yield Asked(level.children, *asked)
            require_children(level.children, below.tokens.shape[2])
            tokens.append(below.tokens.reshape(ops.batch, -1)[:, ops.row(level.picks)[0]])
        drafted = ops.concat(tokens)[:, ops.row(shape.order)[0]]
        return ops.fixed((drafted,), self.tree.parents, shape.depths, shape.widths)

    def results(self, recorded: Recorded) -> PositionResults:
        return static_results(self.tree, recorded.drafted)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        for tree, half in trees_by_half(recorded.drafted, limits.most_tokens):
            yield Graded(cls(tree=tree), static_results(tree, recorded.drafted), half)

    @classmethod
    def probes(cls, most_tokens: int) -> list[StaticPolicy]:
        """Return a bush: its first node at every depth has 3 children."""
        parents, ranks, trunk = [-1], [0], 0
        for _ in range(min(5, (most_tokens - 1) // 3)):
            first = len(parents)
            parents.extend([trunk] * 3)
            ranks.extend(range(3))
            trunk = first
        return [cls(tree=TokenTree(parents=tuple(parents), ranks=tuple(ranks)))]


def require_children(asked: int, known: int) -> None:
    """Raise PlanError where a static tree needs more children of a node than the drafter has tokens."""
    if known < asked:
        raise PlanError(
            f"the static tree needs {asked} children of a node and the drafter has {known} tokens; "
            "take a tree of lower ranks"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLevel:
    """One forward over a tree's inner nodes of one depth: children `ranks` of the previous level's `slots`.

    `picks` are its answers that are nodes of the tree: slot * children + rank.
    """

    slots: tuple[int, ...]
    ranks: tuple[int, ...]
    picks: tuple[int, ...]
    children: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The forwards that grow a tree, and which of all that they pick each node is: `order` (nodes - 1,)."""

    levels: tuple[TreeLevel, ...]
    order: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]


@lru_cache(maxsize=256)
def shape_of(tree: TokenTree) -> Shape:
    """Return the forwards that grow the tree, top down; cached, a tree is grown every round."""
    levels: list[TreeLevel] = []
    picked: list[int] = []
    above: tuple[int, ...] = (-1,)
    for inner in tree.inner_by_depth():
        nodes = [node for node in range(1, tree.size) if tree.parents[node] in inner]
        children = max(tree.ranks[node] for node in nodes) + 1
        levels.append(
            TreeLevel(
                slots=tuple(above.index(tree.parents[node]) for node in inner),
                ranks=tuple(tree.ranks[node] for node in inner),
                picks=tuple(inner.index(tree.parents[node]) * children + tree.ranks[node] for node in nodes),
                children=children,
            )
        )
        picked += nodes
        above = inner
    order = sorted(range(len(picked)), key=lambda place: picked[place])
    return Shape(levels=tuple(levels), order=tuple(order), depths=tree.depths, widths=tree.widths)


def static_results(tree: TokenTree, recording: Recording) -> PositionResults:
    """Return how far the target's own path goes in the same tree of ranks at every row.

    With a prefix-exact trace the path's node at depth d below position t is the root at t + d, so next_rank alone
    decides. Otherwise the path follows recorded expansions, and is censored where one that the tree needs is missing.
    """
    ranks = max(tree.ranks) + 1
    below = np.full((tree.size + 1, ranks + 1), tree.size)  # the last node is "left the tree", the last rank a miss
    below[list(tree.parents[1:]), list(tree.ranks[1:])] = np.arange(1, tree.size)
    is_inner = np.append(np.isin(np.arange(tree.size), tree.parents[1:]), False)
    found = path_ranks(recording, tree.depth)
    node, accepted = np.zeros(len(found), dtype=np.int64), np.zeros(len(found), dtype=np.int64)
    is_censored = np.zeros(len(found), dtype=np.bool_)
    for depth in range(tree.depth):
        is_untold = (found[:, depth] == UNKNOWN) & (recording.rows.left > depth)
        is_censored |= is_inner[node] & is_untold
        node = below[node, np.where(found[:, depth] == UNKNOWN, ranks, np.minimum(found[:, depth], ranks))]
        accepted += node < tree.size
    return of_one_size(accepted, tree.size, tree.widths, is_censored)


def trees_by_half(recording: Recording, most_tokens: int) -> list[tuple[TokenTree, int]]:
    """Return the best trees of each half of the texts, and which half that is; EVERYWHERE for those of both."""
    halves: dict[TokenTree, set[int]] = {}
    for half in range(HALVES):
        is_of_half = half_of(folds_of(len(recording.texts)))[recording.rows.text_of] == half
        for acceptance in (acceptance_by_rank(recording, is_of_half), acceptance_by_depth(recording, is_of_half)):
            for tree in static_trees(acceptance, most_tokens):
                halves.setdefault(tree, set()).add(half)
    return [(tree, EVERYWHERE if len(seen) == HALVES else seen.pop()) for tree, seen in halves.items()]


def acceptance_by_rank(recording: Recording, chosen: Bools) -> Floats:
    """Return (children,): how often the target's token has each rank, over the chosen rows."""
    at = np.flatnonzero(chosen & (recording.rows.left > 0))
    counts = np.bincount(recording.next_rank[at], minlength=recording.children)[: recording.children]
    shares: Floats = counts / max(len(at), 1)
    return shares


def acceptance_by_depth(recording: Recording, chosen: Bools) -> Floats:
    """Return (depths, children): how often the target's path continues with each rank, given that it came so far.

    Paths start at the chosen rows, as far as recorded. The last depth is the deepest that a tenth of them reach.
    """
    found, left = path_ranks(recording, max(DEPTHS)), recording.rows.left
    at = np.flatnonzero(chosen & (left > 0))
    least = max(len(at) // 10, 1)
    rows: list[Floats] = []
    for depth in range(found.shape[1]):
        at = at[found[at, depth] != UNKNOWN]
        if len(at) < least:
            break
        counts = np.bincount(found[at, depth], minlength=recording.children)[: recording.children]
        rows.append(counts / len(at))
        at = at[(found[at, depth] < recording.children) & (left[at] > depth + 1)]
    return np.array(rows)
