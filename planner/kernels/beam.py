"""The candidates of a growing tree: a few compiled calls instead of many on small arrays."""

from __future__ import annotations

import numpy as np

from .arrays import ROOT_TOKEN, Bools, Floats32, Ints
from .compiled import compiled


@compiled
def locate(kept: Ints, children: int, located: Ints) -> None:
    """Write the slot in the layer above and the child's rank of each remaining candidate; the slot is -1 for padding.

    `kept` (batch, width) is slot * children + rank, below 0 for padding; `located` (2, batch, width) is written.
    """
    for row in range(kept.shape[0]):
        for place in range(kept.shape[1]):
            candidate = kept[row, place]
            is_padding = candidate < 0
            located[0, row, place] = -1 if is_padding else candidate // children
            located[1, row, place] = 0 if is_padding else candidate % children


@compiled
def add_up(kept: Ints, start: int, above: Floats32, log_probs: Floats32, scores: Floats32, parents: Ints) -> None:
    """Write the path scores and the parents of the children of remaining candidates; -inf below padding.

    `kept` (batch, width) are candidates of the layer above, the first of which has index `start` among all; `above`
    (batch, candidates) their scores; `log_probs` (batch, width, children) conditional. `scores` and `parents` (batch,
    width * children) are written.
    """
    children = log_probs.shape[2]
    for row in range(kept.shape[0]):
        for place in range(kept.shape[1]):
            candidate = kept[row, place]
            for rank in range(children):
                child = place * children + rank
                parents[row, child] = candidate + start
                scores[row, child] = -np.inf if candidate < 0 else above[row, candidate] + log_probs[row, place, rank]


@compiled
def best_first(scores: Floats32, chosen: Ints) -> None:
    """Write into `chosen` (batch, any) the best of `scores` (batch, candidates), best first, of equals the first.

    No score may be NaN; `chosen` has at most as many columns as there are candidates.
    """
    count = chosen.shape[1]
    best = np.empty(count, np.float32)
    for row in range(len(scores)):
        known = 0
        for candidate in range(scores.shape[1]):
            score = scores[row, candidate]
            if known == count and not score > best[count - 1]:
                continue
            at = min(known, count - 1)
            known = min(known + 1, count)
            while at > 0 and best[at - 1] < score:
                best[at], chosen[row, at] = best[at - 1], chosen[row, at - 1]
                at -= 1
            best[at], chosen[row, at] = score, candidate


@compiled
def hang(tokens: Ints, parents: Ints, starts: Ints, is_chosen: Bools, trees: Ints) -> None:
    """Write the trees of chosen candidates.

    Args:
        tokens, parents: (batch, candidates of all layers); a parent is an index among them, or negative: the root.
        starts: (layers,), index of each layer's first candidate.
        is_chosen: (batch, candidates of all layers), closed under parents.
        trees: (3, batch, nodes of the largest tree), tokens, parents and depths, roots included; written.
    """
    node_of = np.zeros(tokens.shape[1], dtype=np.int64)
    for row in range(len(tokens)):
        layer, node = 0, 1
        trees[0, row, 0], trees[1, row, 0], trees[2, row, 0] = ROOT_TOKEN, -1, 0
        for candidate in range(tokens.shape[1]):
            if is_chosen[row, candidate]:
                while layer + 1 < len(starts) and starts[layer + 1] <= candidate:
                    layer += 1
                node_of[candidate] = node
                above = parents[row, candidate]
                trees[0, row, node] = tokens[row, candidate]
                trees[1, row, node] = 0 if above < 0 else node_of[above]
                trees[2, row, node] = layer + 1
                node += 1
        trees[0, row, node:], trees[1, row, node:], trees[2, row, node:] = ROOT_TOKEN, 0, 1


@compiled
def hang_best(scores: Floats32, tokens: Ints, parents: Ints, starts: Ints, trees: Ints) -> None:
    """Write the trees of the best candidates: `best_first`, then `hang`.

    `trees` (3, batch, drafts + 1) has at least one draft and at most the candidates; the rest is as in `hang`.
    """
    chosen, is_chosen = np.empty((len(scores), trees.shape[2] - 1), np.int64), np.zeros(scores.shape, np.bool_)
    best_first(scores, chosen)
    for row in range(len(scores)):
        for place in chosen[row]:
            is_chosen[row, place] = True
    hang(tokens, parents, starts, is_chosen, trees)
