"""Growing a chain: the most likely token after the most likely token, to its end or until the drafter doubts."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ..records.draft import ROOT_TOKEN, Bools, DraftBatch, Ints, LayerScorer, Scores, chains_of, draft_of_one_shape
from ..strategies.chain import ChainPolicy
from ..strategies.confident_chain import ConfidentChainPolicy


def grow_chain(policy: ChainPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return one chain of `policy.length` drafted tokens per sequence."""
    children = scorer.root(1)
    nodes = policy.length + 1
    tokens = np.full((len(children.tokens), nodes), ROOT_TOKEN, dtype=np.int64)
    tokens[:, 1] = children.tokens[:, 0, 0]
    for depth in range(2, nodes):
        first = first_of(len(tokens))
        tokens[:, depth] = scorer.expand(first, first, 1).tokens[:, 0, 0]
    return draft_of_one_shape(tokens, range(-1, policy.length), range(nodes), (1,) * policy.length)


@lru_cache(maxsize=256)
def first_of(batch: int) -> Ints:
    """Return (batch, 1): the first slot, or child, of every row; nobody writes to it."""
    return np.zeros((batch, 1), dtype=np.int64)


def grow_confident_chain(policy: ConfidentChainPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return one chain per sequence; drafting goes on while any sequence's last token is not doubted."""
    children = scorer.root(1)
    batch = len(children.tokens)
    tokens = np.full((batch, policy.length + 1), ROOT_TOKEN, dtype=np.int64)
    lengths = np.zeros(batch, dtype=np.int64)
    is_open = np.ones(batch, dtype=np.bool_)
    depth = 0
    while True:
        depth += 1
        tokens[is_open, depth] = children.tokens[is_open, 0, 0]
        lengths[is_open] = depth
        is_open = is_open & is_sure(children.log_probs[:, 0, 0], policy.confidence)
        if depth == policy.length or not is_open.any():
            break
        children = scorer.expand(np.where(is_open, 0, -1)[:, None], np.zeros((batch, 1), dtype=np.int64), 1)
    return chains_of(tokens[:, : depth + 1], lengths, (1,) * depth)


def is_sure(log_probs: Scores, confidence: float) -> Bools:
    """Return whether tokens are not doubted: conditional log-probabilities in float32, compared in float64."""
    return log_probs.astype(np.float64) >= (math.log(confidence) if confidence else -math.inf)
