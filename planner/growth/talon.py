"""The tree of TALON: a budget of nodes, filled layer by layer with what is not far below the layer's best."""

from __future__ import annotations

import math

import numpy as np

from ..records.draft import Bools, DraftBatch, Ints, LayerScorer, Scores
from ..strategies.talon import TalonPolicy
from .beam import NOTHING, best_candidates, first_layer, next_layer, ragged_tree_of


def grow_talon(policy: TalonPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return trees of `policy.nodes` nodes, fewer where depth or recorded candidates end before.

    layer 1     = the root's top_k children
    layer d + 1 = candidates whose path probability is at least gate * (the layer's best)
    the layer that would exceed the budget keeps only its best; then the tree is full

    Every node of the tree is expanded but those of the layer that fills it. A forward is as wide as the widest
    sequence of the batch needs; there are as many as the deepest one needs.

    Source: Liu et al. 2026, arXiv:2601.07353, Algorithm 2.
    """
    layers = [first_layer(scorer, policy.children)]
    room = np.full(len(layers[0].scores), policy.nodes - 1, dtype=np.int64)
    chosen: list[Bools] = []
    while True:
        ranked = best_candidates(layers[-1].scores, int(room.max()))
        fits = _fitting(policy, layers[-1].scores, ranked, room, is_first=len(layers) == 1)
        is_chosen = np.zeros(layers[-1].scores.shape, dtype=np.bool_)
        np.put_along_axis(is_chosen, ranked, fits, axis=1)
        chosen.append(is_chosen)
        room = room - fits.sum(axis=1)
        frontier = np.where(fits & (room > 0)[:, None], ranked, -1)
        width = int((frontier >= 0).sum(axis=1).max())
        if width == 0 or len(layers) == policy.max_depth:
            return ragged_tree_of(layers, np.concatenate(chosen, axis=1))
        layers.append(next_layer(scorer, layers[-1], frontier[:, :width], policy.children))


def _fitting(policy: TalonPolicy, scores: Scores, ranked: Ints, room: Ints, *, is_first: bool) -> Bools:
    """Return (batch, ranked): which of the ranked candidates join the tree, always the first so many of them."""
    places = np.arange(ranked.shape[1])
    best = np.take_along_axis(scores, ranked, axis=1)
    if is_first:
        passes = np.broadcast_to(places < policy.top_k, best.shape)
    else:
        passes = best >= best[:, :1].astype(np.float64) + math.log(policy.gate)
    return passes & (best > NOTHING) & (places < room[:, None])
