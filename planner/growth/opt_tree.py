"""The tree of OPT-Tree: layers as wide as the tree, drafted while the best tree of all candidates gains enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..records.draft import Bools, DraftBatch, Ints, LayerScorer, Scores
from ..strategies.opt_tree import OptTreePolicy
from .beam import NOTHING, CandidateLayer, best_candidates, first_layer, next_layer, ragged_tree_of

Floats = NDArray[np.float64]


def grow_opt_tree(policy: OptTreePolicy, scorer: LayerScorer) -> DraftBatch:
    """Return the best `policy.nodes` candidates of all layers drafted, and the root.

    Each sequence stops on its own; a forward serves those that go on.

    Source: Wang et al. 2024, arXiv:2406.17276, Algorithm 1.
    """
    layers = [first_layer(scorer, policy.children)]
    is_open = np.ones(len(layers[0].scores), dtype=np.bool_)
    best, gained = _Best.none(len(is_open)), np.zeros(len(is_open))
    while True:
        ranked = best_candidates(layers[-1].scores, policy.nodes)
        best = best.with_layer(layers[-1], ranked, policy.nodes)
        before, gained = gained, best.expected()
        is_open &= gained - before > policy.least_gain
        frontier = _frontier(layers[-1], ranked, is_open)
        if len(layers) == policy.max_depth or frontier.shape[1] == 0:
            return ragged_tree_of(layers, best.chosen(layers))
        layers.append(next_layer(scorer, layers[-1], frontier, policy.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best candidates of all layers so far, best first, ties in recorded order; (batch, up to nodes) each."""

    scores: Scores
    candidates: Ints  # index among all candidates of all layers

    @classmethod
    def none(cls, batch: int) -> _Best:
        """Return the best of no layer."""
        return cls(scores=np.zeros((batch, 0), dtype=np.float32), candidates=np.zeros((batch, 0), dtype=np.int64))

    def with_layer(self, layer: CandidateLayer, ranked: Ints, nodes: int) -> _Best:
        """Return the best `nodes` after one more layer, whose own best are `ranked`."""
        scores = np.concatenate([self.scores, np.take_along_axis(layer.scores, ranked, axis=1)], axis=1)
        candidates = np.concatenate([self.candidates, ranked + layer.start], axis=1)
        order = best_candidates(scores, nodes)
        return _Best(
            scores=np.take_along_axis(scores, order, axis=1), candidates=np.take_along_axis(candidates, order, axis=1)
        )

    def expected(self) -> Floats:
        """Return (batch,): E, the sum of the path probabilities.

        Added up one by one, best first: candidates that are none change nothing, so no sequence sees its neighbours.
        """
        total: Floats = np.exp(self.scores, dtype=np.float64).cumsum(axis=1)[:, -1]
        return total

    def chosen(self, layers: list[CandidateLayer]) -> Bools:
        """Return (batch, candidates of all layers): which are among the best."""
        every = layers[-1].start + layers[-1].tokens.shape[1]
        is_chosen = np.zeros((len(self.scores), every), dtype=np.bool_)
        np.put_along_axis(is_chosen, self.candidates, self.scores > NOTHING, axis=1)
        return is_chosen


def _frontier(layer: CandidateLayer, ranked: Ints, is_open: Bools) -> Ints:
    """Return (batch, width): the layer's best candidates to expand, -1 behind the last of a row."""
    wanted = (np.take_along_axis(layer.scores, ranked, axis=1) > NOTHING) & is_open[:, None]
    width = int(wanted.sum(axis=1).max())
    return np.where(wanted, ranked, -1)[:, :width]
