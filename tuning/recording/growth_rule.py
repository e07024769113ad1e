"""A growth rule says, layer by layer, which nodes of a tree are expanded.

It knows only the scores of its own nodes, so its choice does not depend on other rules. Path scores are float32 sums of
conditional log-probabilities from the root down, as in the planner's growth code; ties go to the shallower node, then
to the one chosen first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...planner.records.draft import Ints, Scores
from ...planner.records.ops import best_candidates

Bools = NDArray[np.bool_]
NOTHING = np.float32(-np.inf)  # score of a node that is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One layer of a rule's trees.

    `nodes` (rows, chosen) are node * children + rank among the candidates, best first; -1 where a row has fewer.
    `is_open` (rows,) says whether the drafter expands them; else they are leaves.
    """

    nodes: Ints
    is_open: Bools

    @property
    def expanded(self) -> Ints:
        """(rows, chosen): the nodes to be expanded, -1 elsewhere."""
        return np.where(self.is_open[:, None], self.nodes, -1)


class Growth(Protocol):
    """One rule's trees on their way down, one per row."""

    def choose(self, log_probs: Scores) -> Choice:
        """Return the next layer's nodes.

        `log_probs` (rows, nodes, children), -inf if missing, are conditional, of the nodes expanded last, as chosen.
        """


class GrowthRule(Protocol):
    """A way of choosing the nodes to expand; what it keeps between layers lives in a Growth."""

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""

    def start(self, rows: int) -> Growth:
        """Return fresh trees of that many rows: only their roots are expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The nodes of the newest layer: `scores` (rows, nodes) are their path log-probabilities, -inf where none is."""

    scores: Scores

    @classmethod
    def roots(cls, rows: int) -> Front:
        """Return the roots, whose path is empty."""
        return cls(scores=np.zeros((rows, 1), dtype=np.float32))

    def candidates(self, log_probs: Scores, most: int | None = None) -> Scores:
        """Return (rows, nodes * children): the path scores of all children, -inf from rank `most` on."""
        if most is not None and most < log_probs.shape[2]:
            log_probs = np.where(np.arange(log_probs.shape[2]) < most, log_probs, NOTHING)
        return (self.scores[:, :, None] + log_probs).reshape(len(log_probs), -1)


def taken(candidates: Scores, order: Ints, is_taken: Bools, is_open: Bools) -> tuple[Choice, Front]:
    """Return the chosen candidates as a layer, and as the front of the next one.

    `candidates` are (rows, candidates) path scores, `order` (rows, chosen) the best first; `is_taken` marks the start
    of each row that is really chosen, `is_open` (rows,) the rows that are expanded.
    """
    scores = np.take_along_axis(candidates, order, axis=1)
    is_there = is_taken & (scores > NOTHING)
    width = int(is_there.any(axis=0).sum())
    nodes = np.where(is_there, order, -1)[:, :width]
    front = np.where(is_there & is_open[:, None], scores, NOTHING)[:, :width]
    return Choice(nodes=nodes, is_open=is_open), Front(scores=front)


def merged(best: Scores, new: Scores, most: int) -> tuple[Scores, Ints]:
    """Return the best `most` of two lists of scores, and their places in best + new; older ones win ties."""
    both = np.concatenate([best, new], axis=1)
    order = best_candidates(both, most)
    return np.take_along_axis(both, order, axis=1), order
