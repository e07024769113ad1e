"""Growing a chain on a device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.confident_chain import ConfidentChainPolicy
from .draft import DeviceDraft, DeviceScorer, rooted


def grow_chain(policy: ChainPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return one chain of `policy.length` drafted tokens per sequence; see `planner.growth.chain`."""
    tokens = [scorer.root(1).tokens[:, 0]]
    first = torch.zeros_like(tokens[0])
    while len(tokens) < policy.length:
        tokens.append(scorer.expand(first, first, 1).tokens[:, 0])
    return _chains(tokens, torch.full_like(first[:, 0], policy.length))


def grow_confident_chain(policy: ConfidentChainPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return one chain per sequence, each as long as its tokens are not doubted; see `planner.growth.chain`."""
    below = scorer.root(1)
    tokens = [below.tokens[:, 0]]
    lengths = torch.ones_like(tokens[0][:, 0])
    is_open, nothing = _is_sure(below.log_probs, policy.confidence), torch.zeros_like(tokens[0])
    while len(tokens) < policy.length and not scorer.none_open(is_open):
        below = scorer.expand(is_open.to(torch.int64).unsqueeze(1) - 1, nothing, 1)
        tokens.append(below.tokens[:, 0])
        lengths = lengths + is_open
        is_open = is_open & _is_sure(below.log_probs, policy.confidence)
    return _chains(tokens, lengths)


def _is_sure(log_probs: Tensor, confidence: float) -> Tensor:
    """Return (batch,): whether tokens are not doubted, compared in float64 as the planner does."""
    return log_probs[:, 0, 0].double() >= (math.log(confidence) if confidence else -math.inf)


def _chains(tokens: list[Tensor], lengths: Tensor) -> DeviceDraft:
    """Return chains of so many tokens; each of `tokens` is (batch, 1), one depth further."""
    drafted = torch.cat(tokens, dim=1)
    depths = torch.arange(1, len(tokens) + 1, device=drafted.device).expand_as(drafted)
    is_padding = depths > lengths.unsqueeze(1)
    return rooted(
        drafted.masked_fill(is_padding, ROOT_TOKEN),
        (depths - 1).masked_fill(is_padding, 0),
        depths.masked_fill(is_padding, 1),
        lengths + 1,
        (1,) * len(tokens),
    )
