"""The candidates of a growing tree: every child the drafter proposed, layer by layer.

EAGLE-2 and CAST share this bookkeeping. A layer expands the *kept* candidates of the layer above
and records all their children; the verified tree is any set of best-scored candidates. It is
closed under parents, because a child never scores above its parent and is recorded after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .draft import ROOT_TOKEN, Children, DraftBatch, Ints, LayerScorer, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayer:
    """All children recorded by one drafter forward; candidate = slot * children + rank.

    Attributes:
        tokens: (batch, candidates).
        scores: (batch, candidates), float32 path log-probability.
        parents: (batch, candidates), parent's index among all candidates of all layers; -1 = root.
        children: recorded per expanded node.
        start: index of this layer's first candidate among all candidates of all layers.
        width: nodes per sequence the forward saw.
    """

    tokens: Ints
    scores: Scores
    parents: Ints
    children: int
    start: int
    width: int


def first_layer(scorer: LayerScorer, children: int) -> CandidateLayer:
    """Return the root's own children."""
    below = scorer.root(children)
    scores = below.log_probs[:, 0]
    parents = np.full(scores.shape, -1, dtype=np.int64)
    return _recorded(below, scores, parents, start=0)


def next_layer(scorer: LayerScorer, layer: CandidateLayer, kept: Ints, children: int) -> CandidateLayer:
    """Return the children of the kept candidates of a layer.

    Args:
        kept: (batch, width), candidates of `layer` to expand, in the order of their slots.
        children: to record per kept candidate.
    """
    slots, ranks = kept // layer.children, kept % layer.children
    below = scorer.expand(slots, ranks, children)
    scores = layer.scores[_rows(kept), kept][:, :, None] + below.log_probs
    parents = np.repeat(kept + layer.start, below.tokens.shape[2], axis=1)
    return _recorded(below, scores.reshape(parents.shape), parents, start=layer.start + layer.tokens.shape[1])


def best_candidates(scores: Scores, count: int) -> Ints:
    """Return (batch, count): indices of the highest scores, best first, ties in index order."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def tree_of(layers: Sequence[CandidateLayer], chosen: Ints) -> DraftBatch:
    """Return the tree of chosen candidates, parents before children.

    Args:
        layers: all layers, top down.
        chosen: (batch, drafts), indices among all candidates of all layers, closed under parents.
    """
    batch, drafts = chosen.shape
    chosen, rows = np.sort(chosen, axis=1), _rows(chosen)
    place = np.zeros((batch, layers[-1].start + layers[-1].tokens.shape[1] + 1), dtype=np.int64)
    place[rows, chosen] = np.arange(1, drafts + 1)  # the last column stays 0: index -1 is the root
    tokens, parents, depths = np.empty((3, batch, drafts + 1), dtype=np.int64)
    tokens[:, 0], parents[:, 0], depths[:, 0] = ROOT_TOKEN, -1, 0
    tokens[:, 1:] = _all([layer.tokens for layer in layers])[rows, chosen]
    parents[:, 1:] = place[rows, _all([layer.parents for layer in layers])[rows, chosen]]
    depths[:, 1:] = np.searchsorted([layer.start for layer in layers], chosen, side="right")
    sizes = np.full(batch, drafts + 1, dtype=np.int64)
    widths = tuple(layer.width for layer in layers)
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=widths)


def all_scores(layers: Sequence[CandidateLayer]) -> Scores:
    """Return (batch, candidates of all layers): path log-probabilities in recorded order."""
    return np.concatenate([layer.scores for layer in layers], axis=1)


def _recorded(below: Children, scores: Scores, parents: Ints, start: int) -> CandidateLayer:
    batch, width, children = below.tokens.shape
    tokens = below.tokens.reshape(batch, width * children)
    return CandidateLayer(tokens=tokens, scores=scores, parents=parents, children=children, start=start, width=width)


def _all(arrays: list[Ints]) -> Ints:
    return np.concatenate(arrays, axis=1)


def _rows(picked: Ints) -> Ints:
    return np.arange(len(picked))[:, None]
