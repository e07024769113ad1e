"""The candidates of a growing tree: every child the drafter proposed, layer by layer.

Shared by all trees that follow the drafter's confidence. A layer expands the *kept* candidates of the layer above and
records all their children; the verified tree is any set of candidates that holds their parents. The best-scored ones
are such a set: a child never scores above its parent and is recorded after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..kernels.beam import add_up, hang, hang_best, locate
from .draft import Bools, Children, DraftBatch, Ints, LayerScorer, Scores

Numbers = TypeVar("Numbers", Ints, Scores)

NOTHING = np.float32(-np.inf)  # score of what is no candidate
MANY = 512  # candidates from which on sorting a shortlist is faster than sorting all


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayer:
    """All children recorded by one drafter forward; candidate = slot * children + rank."""

    tokens: Ints  # (batch, candidates)
    scores: Scores  # (batch, candidates), float32 path log-probability
    parents: Ints  # (batch, candidates), parent's index among all candidates of all layers; -1 = root
    children: int  # recorded per expanded node
    start: int  # index of this layer's first candidate among those of all layers
    width: int  # nodes per sequence the forward saw


def first_layer(scorer: LayerScorer, children: int) -> CandidateLayer:
    """Return the root's own children."""
    below = scorer.root(children)
    scores = below.log_probs[:, 0]
    parents = np.empty(scores.shape, dtype=np.int64)
    parents.fill(-1)  # behind a forward a third of what np.full takes
    return _recorded(below, scores, parents, start=0)


def next_layer(scorer: LayerScorer, layer: CandidateLayer, kept: Ints, children: int) -> CandidateLayer:
    """Return the children of the kept candidates of a layer, `children` of each.

    `kept` (batch, width) are candidates to expand, in the order of their slots; -1 is padding of a row that expands
    fewer, its children score -inf.
    """
    kept = np.ascontiguousarray(kept)
    slots, ranks = located = np.empty((2, *kept.shape), dtype=np.int64)
    locate(kept, layer.children, located)
    below = scorer.expand(slots, ranks, children)
    shape = len(kept), below.tokens.shape[1] * below.tokens.shape[2]
    scores, parents = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
    log_probs = np.ascontiguousarray(below.log_probs, dtype=np.float32)
    add_up(kept, layer.start, np.ascontiguousarray(layer.scores), log_probs, scores, parents)
    return _recorded(below, scores, parents, start=layer.start + layer.tokens.shape[1])


def best_candidates(scores: Scores, count: int) -> Ints:
    """Return (batch, count): indices of the highest scores, best first, ties in index order."""
    if scores.shape[1] < MANY or scores.shape[1] < 4 * count:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    shortlist = _at_least_the_last(scores, count)
    order = np.argsort(-np.take_along_axis(scores, shortlist, axis=1), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(shortlist, order, axis=1)


def _at_least_the_last(scores: Scores, count: int) -> Ints:
    """Return (batch, some): in index order all that may be among the best `count`, then others that score less."""
    last = np.partition(scores, -count, axis=1)[:, -count, None]
    is_in = scores >= last
    return np.argsort(~is_in, axis=1, kind="stable")[:, : int(is_in.sum(axis=1).max())]


def best_tree(layers: Sequence[CandidateLayer], drafts: int) -> DraftBatch:
    """Return the tree of the best `drafts` candidates beside the root, or all; ties in index order, layers top down."""
    scores = _all([layer.scores for layer in layers])
    if scores.shape[1] >= MANY or drafts < 1:
        return tree_of(layers, best_candidates(scores, drafts))
    trees = np.empty((3, len(scores), min(drafts, scores.shape[1]) + 1), dtype=np.int64)
    tokens, parents, starts = _candidates_of(layers)
    hang_best(scores, tokens, parents, starts, trees)
    return _drafted(layers, trees, np.array([trees.shape[2]] * len(scores)))


def tree_of(layers: Sequence[CandidateLayer], chosen: Ints) -> DraftBatch:
    """Return the tree of chosen candidates, parents before children; layers are top down.

    `chosen` (batch, drafts) are indices among all candidates of all layers, closed under parents.
    """
    return _tree(layers, np.sort(chosen, axis=1), np.full(len(chosen), chosen.shape[1] + 1))


def ragged_tree_of(layers: Sequence[CandidateLayer], is_chosen: Bools) -> DraftBatch:
    """Return the trees of chosen candidates where sequences choose differently many; layers are top down.

    `is_chosen` (batch, candidates of all layers) is closed under parents.
    """
    sizes = is_chosen.sum(axis=1) + 1
    first = np.argsort(~is_chosen, axis=1, kind="stable")  # the chosen ones in recorded order, then others
    return _tree(layers, np.ascontiguousarray(first[:, : int(sizes.max()) - 1]), sizes)


def all_scores(layers: Sequence[CandidateLayer]) -> Scores:
    """Return (batch, candidates of all layers): path log-probabilities in recorded order."""
    return np.concatenate([layer.scores for layer in layers], axis=1)


def _recorded(below: Children, scores: Scores, parents: Ints, start: int) -> CandidateLayer:
    batch, width, children = below.tokens.shape
    tokens = below.tokens.reshape(batch, width * children)
    return CandidateLayer(tokens=tokens, scores=scores, parents=parents, children=children, start=start, width=width)


def _tree(layers: Sequence[CandidateLayer], chosen: Ints, sizes: Ints) -> DraftBatch:
    """Return the trees of the first `sizes` (batch,) nodes, root included, of `chosen` (batch, drafts), ascending."""
    trees = np.empty((3, len(chosen), chosen.shape[1] + 1), dtype=np.int64)
    tokens, parents, starts = _candidates_of(layers)
    hang(tokens, parents, starts, chosen, sizes, trees)
    return _drafted(layers, trees, sizes)


def _candidates_of(layers: Sequence[CandidateLayer]) -> tuple[Ints, Ints, Ints]:
    tokens, parents = _all([layer.tokens for layer in layers]), _all([layer.parents for layer in layers])
    return tokens, parents, np.array([layer.start for layer in layers])


def _drafted(layers: Sequence[CandidateLayer], trees: Ints, sizes: Ints) -> DraftBatch:
    tokens, parents, depths = trees
    widths = tuple(layer.width for layer in layers)
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=widths)


def _all(arrays: list[Numbers]) -> Numbers:
    return np.concatenate(arrays, axis=1) if len(arrays) > 1 else np.ascontiguousarray(arrays[0])
