"""The tree of OPT-Tree: layers as wide as the tree, drafted while the best tree of all candidates gains enough."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .beam import NOTHING, CandidateLayer, all_scores, best_candidates, first_layer, next_layer, ragged_tree_of
from .draft import Bools, DraftBatch, Ints, LayerScorer
from .policy import OptTreePolicy

Floats = NDArray[np.float64]


def grow_opt_tree(policy: OptTreePolicy, scorer: LayerScorer) -> DraftBatch:
    """Return the best `policy.nodes` candidates of all layers drafted, and the root.

    Each sequence stops on its own; a forward serves those that go on.

    Source: Wang et al. 2024, arXiv:2406.17276, Algorithm 1.
    """
    layers = [first_layer(scorer, policy.children)]
    is_open = np.ones(len(layers[0].scores), dtype=np.bool_)
    gained: Floats = np.zeros(len(is_open))
    while True:
        before, gained = gained, _expected(layers, policy.nodes)
        is_open &= gained - before > policy.least_gain
        frontier = _frontier(layers[-1], policy.nodes, is_open)
        if len(layers) == policy.max_depth or frontier.shape[1] == 0:
            break
        layers.append(next_layer(scorer, layers[-1], frontier, policy.children))
    scores = all_scores(layers)
    ranked = best_candidates(scores, policy.nodes)
    is_chosen = np.zeros(scores.shape, dtype=np.bool_)
    np.put_along_axis(is_chosen, ranked, True, axis=1)
    return ragged_tree_of(layers, is_chosen & (scores > NOTHING))


def _expected(layers: list[CandidateLayer], nodes: int) -> Floats:
    """Return (batch,): E, the sum of the largest path probabilities of all layers so far."""
    scores = all_scores(layers)
    best = np.take_along_axis(scores, best_candidates(scores, nodes), axis=1)
    total: Floats = np.exp(best, dtype=np.float64).sum(axis=1)
    return total


def _frontier(layer: CandidateLayer, nodes: int, is_open: Bools) -> Ints:
    """Return (batch, width): the layer's best candidates to expand, -1 behind the last of a row."""
    ranked = best_candidates(layer.scores, nodes)
    wanted = (np.take_along_axis(layer.scores, ranked, axis=1) > NOTHING) & is_open[:, None]
    width = int(wanted.sum(axis=1).max())
    return np.where(wanted, ranked, -1)[:, :width]
