"""The tree of EAGLE-2 and EAGLE-3: a beam of fixed width, then the best of all it saw."""

from __future__ import annotations

from ..records.draft import DraftBatch, LayerScorer
from ..strategies.eagle2 import Eagle2Policy
from .beam import best_candidates, best_tree, first_layer, next_layer


def grow_eagle2(policy: Eagle2Policy, scorer: LayerScorer) -> DraftBatch:
    """Return the best `verify_tokens - 1` candidates of a beam search, and the root.

    layer 1 = top_k children of the root
    layer i = top_k children of the top_k best of layer i - 1 by path score; all top_k^2 recorded
    tree    = the best of all recorded candidates; all of them if there are fewer

    The deepest node may be at depth `policy.depth + 1`.

    Source: Li et al. 2024, arXiv:2406.16858, Sec. 4 (expansion, reranking); same in
        Li et al. 2025, arXiv:2503.01840.
    """
    layers = [first_layer(scorer, policy.top_k)]
    for _ in range(policy.depth):
        frontier = best_candidates(layers[-1].scores, policy.top_k)
        layers.append(next_layer(scorer, layers[-1], frontier, policy.top_k))
    return best_tree(layers, policy.verify_tokens - 1)
