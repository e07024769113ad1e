"""Growing a chain: the most likely token after the most likely token."""

from __future__ import annotations

import numpy as np

from .draft import ROOT_TOKEN, DraftBatch, LayerScorer, draft_of_one_shape
from .policy import ChainPolicy


def grow_chain(policy: ChainPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return one chain of `policy.length` drafted tokens per sequence."""
    children = scorer.root(1)
    nodes = policy.length + 1
    tokens = np.full((len(children.tokens), nodes), ROOT_TOKEN, dtype=np.int64)
    tokens[:, 1] = children.tokens[:, 0, 0]
    first = np.zeros((len(tokens), 1), dtype=np.int64)
    for depth in range(2, nodes):
        tokens[:, depth] = scorer.expand(first, first, 1).tokens[:, 0, 0]
    return draft_of_one_shape(tokens, range(-1, policy.length), range(nodes), (1,) * policy.length)
