"""The tree of EAGLE-2 and EAGLE-3 on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .candidates import all_scores, best_candidates, first_layer, marked, next_layer, tree_of
from .draft import DeviceDraft, DeviceScorer

if TYPE_CHECKING:
    from ...planner.strategies.eagle2 import Eagle2Policy


def grow(policy: Eagle2Policy, scorer: DeviceScorer) -> DeviceDraft:
    """Return the root and the best candidates of a beam search; see `planner.strategies.eagle2`."""
    layers = [first_layer(scorer, policy.top_k)]
    for _ in range(policy.depth):
        frontier = best_candidates(layers[-1].scores, policy.top_k)
        layers.append(next_layer(scorer, layers[-1], frontier, policy.top_k))
    chosen = best_candidates(all_scores(layers), policy.verify_tokens - 1)
    return tree_of(layers, marked(chosen, torch.ones_like(chosen, dtype=torch.bool), layers[-1].end), chosen.shape[1])
