"""Growing a chain that ends where the drafter doubts, on a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chains
from .draft import DeviceDraft, DeviceScorer

if TYPE_CHECKING:
    from ...planner.strategies.confident_chain import ConfidentChainPolicy


def grow(policy: ConfidentChainPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return one chain per sequence, which ends at a doubted token; see `planner.strategies.confident_chain`."""
    below = scorer.root(1)
    tokens = [below.tokens[:, 0]]
    lengths = torch.ones_like(tokens[0][:, 0])
    is_open, nothing = _is_sure(below.log_probs, policy.confidence), torch.zeros_like(tokens[0])
    while len(tokens) < policy.length and not scorer.none_open(is_open):
        below = scorer.expand(is_open.to(torch.int64).unsqueeze(1) - 1, nothing, 1)
        tokens.append(below.tokens[:, 0])
        lengths = lengths + is_open
        is_open = is_open & _is_sure(below.log_probs, policy.confidence)
    return chains(tokens, lengths)


def _is_sure(log_probs: Tensor, confidence: float) -> Tensor:
    """Return (batch,): whether tokens are not doubted, compared in float64 as the planner does."""
    return log_probs[:, 0, 0].double() >= (math.log(confidence) if confidence else -math.inf)
