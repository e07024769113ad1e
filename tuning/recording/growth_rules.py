"""The published ways of growing a tree, as rules of what is expanded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from ...planner.records.draft import Ints, Scores
from ...planner.records.ops import best_candidates
from .growth_rule import NOTHING, Choice, Front, Growth, merged, taken

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """The `width` best candidates of every layer, as EAGLE-2 of that top k (arXiv:2406.16858, Sec. 4); 1 is a chain."""

    width: int
    forwards: int  # of the drafter, the root's own included; EAGLE-2 of depth d runs d + 1

    def __post_init__(self) -> None:
        if self.width < 1 or self.forwards < 1:
            raise MeasurementError(f"a beam needs width and forwards of at least 1, got {self.width}, {self.forwards}")

    @property
    def children(self) -> int:
        """Best next tokens of a node that matter."""
        return self.width

    def start(self, rows: int) -> Growth:
        """Return fresh trees."""
        return _BeamGrowth(rule=self, front=Front.roots(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Talon:
    """TALON: `top_k` children of the root, then every candidate not far below its layer's best, up to `nodes`.

    The rule is in `strategies.talon`. The defaults are the paper's N, mu and K. The paper looks at a node's whole
    vocabulary; at most (nodes - 1 - top_k) children of a node fit into the tree.

    Source: Liu et al. 2026, arXiv:2601.07353, Algorithm 2.
    """

    nodes: int = 60
    gate: float = 0.03
    top_k: int = 10
    children: int = 49  # best next tokens of a node that are looked at

    def __post_init__(self) -> None:
        if self.nodes < 2 or not 0.0 < self.gate <= 1.0 or not 1 <= self.top_k <= self.children:
            raise MeasurementError(f"{self}: TALON needs nodes >= 2, a gate in (0, 1] and 1 <= top_k <= children")

    def start(self, rows: int) -> Growth:
        """Return fresh trees."""
        return _TalonGrowth(rule=self, front=Front.roots(rows), room=np.full(rows, self.nodes - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirst:
    """The `nodes` most probable nodes of the drafter's tree, root included, found layer by layer.

    A candidate is expanded if it is among the nodes - 1 best so far. That covers the final tree, since no node scores
    better than its ancestors. Source: Xiong et al. 2024, arXiv:2410.11744 (DySpec); there one node at a time.
    """

    nodes: int = 60
    children: int = 10  # best next tokens of a node that belong to the tree

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.children < 1:
            raise MeasurementError(f"{self}: a best-first tree needs nodes >= 2 and children >= 1")

    def start(self, rows: int) -> Growth:
        """Return fresh trees."""
        return _BestFirstGrowth(rule=self, front=Front.roots(rows), best=np.zeros((rows, 0), dtype=np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptTree:
    """OPT-Tree: the `nodes` best candidates of every layer, while the tree still gains enough.

    The rule and its difference from the published code are in `strategies.opt_tree`.

    Source: Wang et al. 2024, arXiv:2406.17276, Algorithm 1.
    """

    nodes: int = 60
    least_gain: float = 0.5
    max_depth: int = 10
    children: int = 60  # best next tokens of a node that are looked at; more than `nodes` are of no use

    def __post_init__(self) -> None:
        if min(self.nodes, self.max_depth, self.children) < 1 or not math.isfinite(self.least_gain):
            raise MeasurementError(f"{self}: OPT-Tree needs nodes, max_depth and children >= 1 and a finite least_gain")

    def start(self, rows: int) -> Growth:
        """Return fresh trees."""
        nothing = np.zeros((rows, 0), dtype=np.float32)
        return _OptTreeGrowth(rule=self, front=Front.roots(rows), best=nothing, gained=np.zeros(rows))


@dataclass(slots=True)
class _BeamGrowth:
    rule: Beam
    front: Front
    forwards: int = 0

    def choose(self, log_probs: Scores) -> Choice:
        self.forwards += 1
        candidates = self.front.candidates(log_probs, self.rule.width)
        order = best_candidates(candidates, self.rule.width)
        is_open = np.full(len(order), self.forwards < self.rule.forwards)
        choice, self.front = taken(candidates, order, np.ones(order.shape, dtype=np.bool_), is_open)
        return choice


@dataclass(slots=True)
class _TalonGrowth:
    rule: Talon
    front: Front
    room: Ints  # (rows,), nodes that still fit
    is_first: bool = True

    def choose(self, log_probs: Scores) -> Choice:
        candidates = self.front.candidates(log_probs, self.rule.children)
        order = best_candidates(candidates, self.rule.nodes - 1)
        ranked = np.take_along_axis(candidates, order, axis=1)
        places = np.arange(order.shape[1])
        if self.is_first:
            passes = np.broadcast_to(places < self.rule.top_k, order.shape)
        else:
            passes = ranked >= ranked[:, :1].astype(np.float64) + math.log(self.rule.gate)
        fits = passes & (ranked > NOTHING) & (places < self.room[:, None])
        self.room, self.is_first = self.room - fits.sum(axis=1), False
        choice, self.front = taken(candidates, order, fits, self.room > 0)
        return choice


@dataclass(slots=True)
class _BestFirstGrowth:
    rule: BestFirst
    front: Front
    best: Scores  # (rows, up to nodes - 1), the best candidates of all layers so far, best first

    def choose(self, log_probs: Scores) -> Choice:
        candidates = self.front.candidates(log_probs, self.rule.children)
        order = best_candidates(candidates, self.rule.nodes - 1)
        known = self.best.shape[1]
        self.best, among = merged(self.best, np.take_along_axis(candidates, order, axis=1), self.rule.nodes - 1)
        is_among = np.zeros((len(order), known + order.shape[1]), dtype=np.bool_)
        np.put_along_axis(is_among, among, True, axis=1)
        choice, self.front = taken(candidates, order, is_among[:, known:], np.ones(len(order), dtype=np.bool_))
        return choice


@dataclass(slots=True)
class _OptTreeGrowth:
    rule: OptTree
    front: Front
    best: Scores  # (rows, up to nodes), the best candidates of all layers so far, best first
    gained: Floats  # (rows,), E of the layers so far
    depth: int = 0

    def choose(self, log_probs: Scores) -> Choice:
        self.depth += 1
        candidates = self.front.candidates(log_probs, self.rule.children)
        order = best_candidates(candidates, self.rule.nodes)
        self.best, _ = merged(self.best, np.take_along_axis(candidates, order, axis=1), self.rule.nodes)
        before, self.gained = self.gained, np.exp(self.best, dtype=np.float64).cumsum(axis=1)[:, -1]
        is_open = (self.gained - before > self.rule.least_gain) & (self.depth < self.rule.max_depth)
        choice, self.front = taken(candidates, order, np.ones(order.shape, dtype=np.bool_), is_open)
        return choice
