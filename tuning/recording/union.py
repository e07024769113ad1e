"""The union of what several rules expand, at many positions of one text in lock-step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...planner.records.draft import Ints, Scores
from ...profiler.records.acceptance import MISS
from .growth_rule import NOTHING, Bools, Growth, GrowthRule
from .node_cache import NodeCache

ROW = 1 << 40  # a node in a row's tree has the key row * ROW + node; forests are smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
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


def grow_union(forest: NodeCache, rules: Sequence[GrowthRule], continuation: Ints, positions: Ints) -> list[Layer]:
    """Expand what any of the rules expands, without a view of the others; return the layers, the roots first.

    The forest holds one root per position, (rows,). After position t comes continuation[t + 1:].
    """
    trees = _Trees(forest, continuation, positions)
    layers = [trees.roots()]
    running = [_Running(rule.start(len(positions)), np.arange(len(positions))[:, None]) for rule in rules]
    while running:
        asked = [one.ask(forest) for one in running]
        running = [one for one, wanted in zip(running, asked, strict=True) if len(wanted.rows)]
        asked = [wanted for wanted in asked if len(wanted.rows)]
        if asked:
            together = _together(asked)
            nodes = forest.nodes(together.parents, together.ranks)
            layers.append(trees.enter(together, nodes))
            ends = np.cumsum([len(wanted.rows) for wanted in asked])
            for one, wanted, found in zip(running, asked, np.split(nodes, ends[:-1]), strict=True):
                one.enter(wanted, found)
    return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Nodes one rule wants expanded, (wanted,) each: row, place in the rule's layer, parent in the forest, rank."""

    rows: Ints
    places: Ints
    parents: Ints
    ranks: Ints


def _together(asked: Sequence[_Wanted]) -> _Wanted:
    return _Wanted(
        rows=np.concatenate([wanted.rows for wanted in asked]),
        places=np.concatenate([wanted.places for wanted in asked]),
        parents=np.concatenate([wanted.parents for wanted in asked]),
        ranks=np.concatenate([wanted.ranks for wanted in asked]),
    )


class _Running:
    """One rule on its way down, and where its newest nodes are in the forest: (rows, width), -1 = none."""

    def __init__(self, growth: Growth, nodes: Ints) -> None:
        self._growth, self._nodes = growth, nodes
        self._shape = nodes.shape  # of the layer asked for

    def ask(self, forest: NodeCache) -> _Wanted:
        scores = np.where(self._nodes[:, :, None] < 0, NOTHING, forest.log_probs[self._nodes])
        chosen = self._growth.choose(scores).expanded
        self._shape = chosen.shape
        rows, places = np.nonzero(chosen >= 0)
        picked = chosen[rows, places]
        parents = self._nodes[rows, picked // forest.children]
        return _Wanted(rows=rows, places=places, parents=parents, ranks=picked % forest.children)

    def enter(self, wanted: _Wanted, nodes: Ints) -> None:
        self._nodes = np.full(self._shape, -1)
        self._nodes[wanted.rows, wanted.places] = nodes


class _Trees:
    def __init__(self, forest: NodeCache, continuation: Ints, positions: Ints) -> None:
        self._forest, self._continuation, self._positions = forest, continuation, positions
        self._depth = 0
        self._counts = np.ones(len(positions), dtype=np.int64)
        nothing = np.zeros(0, dtype=np.int64)
        self._keys, self._places, self._hits = nothing, nothing, nothing  # of the newest layer, by ascending key

    def roots(self) -> Layer:
        rows = np.arange(len(self._positions))
        zeros = np.zeros(len(rows), dtype=np.int64)
        return self._taken(rows, rows, places=zeros, parents=zeros - 1, ranks=zeros, on_path=zeros == 0)

    def enter(self, wanted: _Wanted, nodes: Ints) -> Layer:
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

    def _taken(self, rows: Ints, nodes: Ints, *, places: Ints, parents: Ints, ranks: Ints, on_path: Bools) -> Layer:
        ahead = self._positions[rows] + 1 + self._depth
        is_known = ahead < len(self._continuation)
        truth = np.where(is_known, self._continuation[np.where(is_known, ahead, 0)], -1)
        matches = self._forest.tokens[nodes] == truth[:, None]
        hits = np.where(on_path & matches.any(axis=1), matches.argmax(axis=1), MISS)
        keys = rows * ROW + nodes
        ascending = np.argsort(keys)
        self._keys, self._places, self._hits = keys[ascending], places[ascending], hits[ascending]
        self._depth += 1
        return Layer(
            positions=self._positions[rows],
            parents=parents,
            ranks=ranks,
            log_probs=self._forest.log_probs[nodes],
            hit_ranks=hits,
        )
