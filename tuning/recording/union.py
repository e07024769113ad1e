"""The union of what several strategies ask a drafter, at many positions of one text in lock-step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...planner.records.draft import Bools, Ints, Scores
from ...planner.records.ops import NumpyOps
from ...planner.strategies.base import Strategy
from ...profiler.records.acceptance import MISS
from .node_cache import NodeCache

ROW = 1 << 40  # a node in a row's tree has the key row * ROW + node; forests are smaller
NO_NODES: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedLayer:
    """Expanded nodes of one depth, row after row, (nodes,) each.

    Attributes:
        positions: of the root of its tree in the text.
        parents: its parent's place among the expanded nodes of that tree, -1 for a root.
        ranks: which child of the parent it is, 0 for a root.
        log_probs: (nodes, children), of its best next tokens.
        hit_ranks: rank of the target's token if the node lies on the target's own path, else MISS.
    """

    positions: Ints
    parents: Ints
    ranks: Ints
    log_probs: Scores
    hit_ranks: Ints


def grow_union(
    forest: NodeCache, strategies: Sequence[Strategy], continuation: Ints, positions: Ints
) -> list[ExpandedLayer]:
    """Expand what any of the strategies needs, without a view of the others; return the layers, the roots first.

    The forest holds one root per position, (rows,). After position t comes continuation[t + 1:]. Sequences that share
    their widths grow one by one, as at batch 1.
    """
    trees, rows = _Trees(forest, continuation, positions), np.arange(len(positions))
    layers = [trees.roots()]
    running = [
        _StrategyGrowth(strategy, own)
        for strategy in strategies
        for own in (rows[:, None] if strategy.is_coupled(len(rows)) else rows[None])
    ]
    while running:
        asked = [(one, wanted) for one in running if len((wanted := one.ask(forest)).rows)]
        running = [one for one, _ in asked]
        if asked:
            together = _Wanted(*(np.concatenate(part) for part in zip(*(wanted for _, wanted in asked), strict=True)))
            nodes = forest.nodes(together.parents, together.ranks)
            layers.append(trees.enter(together, nodes))
            ends = np.cumsum([len(wanted.rows) for _, wanted in asked])
            for one, found in zip(running, np.split(nodes, ends[:-1]), strict=True):
                one.enter(found)
    return layers


class _Wanted(NamedTuple):
    """Nodes that a strategy wants expanded, (wanted,) each: row, parent in the forest, and rank below it."""

    rows: Ints
    parents: Ints
    ranks: Ints


class _StrategyGrowth:
    """One strategy on its way down, and where its newest nodes are in the forest: (rows, width), -1 = none."""

    def __init__(self, strategy: Strategy, rows: Ints) -> None:
        self._growth, self._rows, self._nodes = strategy.grow(NumpyOps(len(rows))), rows, rows[:, None]
        self._children = next(self._growth).children  # of the roots

    def ask(self, forest: NodeCache) -> _Wanted:
        """Return what the strategy needs next: of what is possible, nothing where its trees are complete."""
        try:
            asked = self._growth.send(forest.answers(self._nodes, self._children))
        except StopIteration:
            return _Wanted(NO_NODES, NO_NODES, NO_NODES)
        self._children = asked.children
        above = np.where(asked.parents < 0, -1, self._nodes[np.arange(len(self._rows))[:, None], asked.parents])
        is_wanted = (above >= 0) & (forest.log_probs[above, asked.ranks] > -np.inf)
        self._nodes = np.where(is_wanted, 0, -1)
        rows, _ = np.nonzero(is_wanted)
        return _Wanted(self._rows[rows], above[is_wanted], asked.ranks[is_wanted])

    def enter(self, nodes: Ints) -> None:
        """Take the expanded nodes, in the order of expansion."""
        self._nodes[self._nodes == 0] = nodes


class _Trees:
    def __init__(self, forest: NodeCache, continuation: Ints, positions: Ints) -> None:
        self._forest, self._continuation, self._positions = forest, continuation, positions
        self._depth = 0
        self._counts = np.ones(len(positions), dtype=np.int64)
        self._keys, self._places, self._hits = NO_NODES, NO_NODES, NO_NODES  # of the newest layer, by ascending key

    def roots(self) -> ExpandedLayer:
        rows = np.arange(len(self._positions))
        zeros = np.zeros(len(rows), dtype=np.int64)
        return self._taken(rows, rows, places=zeros, parents=zeros - 1, ranks=zeros, on_path=zeros == 0)

    def enter(self, wanted: _Wanted, nodes: Ints) -> ExpandedLayer:
        _, once = np.unique(wanted.rows * ROW + nodes, return_index=True)
        rows, ranks, nodes = wanted.rows[once], wanted.ranks[once], nodes[once]
        above = np.searchsorted(self._keys, rows * ROW + wanted.parents[once])
        parents, on_path = self._places[above], self._hits[above] == ranks
        order = np.lexsort((ranks, parents, rows))  # whatever the forest's own numbers are
        rows = rows[order]
        places = self._counts[rows] + np.arange(len(rows)) - np.searchsorted(rows, rows)
        self._counts += np.bincount(rows, minlength=len(self._counts))
        return self._taken(
            rows, nodes[order], places=places, parents=parents[order], ranks=ranks[order], on_path=on_path[order]
        )

    def _taken(
        self, rows: Ints, nodes: Ints, *, places: Ints, parents: Ints, ranks: Ints, on_path: Bools
    ) -> ExpandedLayer:
        ahead = self._positions[rows] + 1 + self._depth
        is_known = ahead < len(self._continuation)
        truth = np.where(is_known, self._continuation[np.where(is_known, ahead, 0)], -1)
        matches = self._forest.tokens[nodes] == truth[:, None]
        hits = np.where(on_path & matches.any(axis=1), matches.argmax(axis=1), MISS)
        keys = rows * ROW + nodes
        ascending = np.argsort(keys)
        self._keys, self._places, self._hits = keys[ascending], places[ascending], hits[ascending]
        self._depth += 1
        return ExpandedLayer(
            positions=self._positions[rows],
            parents=parents,
            ranks=ranks,
            log_probs=self._forest.log_probs[nodes],
            hit_ranks=hits,
        )
