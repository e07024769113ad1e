"""Growing a chain on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies.chain import ChainPolicy
from .draft import DeviceDraft, DeviceScorer, rooted


def grow(policy: ChainPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return one chain of `policy.length` drafted tokens per sequence; see `planner.strategies.chain`."""
    tokens = [scorer.root(1).tokens[:, 0]]
    first = torch.zeros_like(tokens[0])
    while len(tokens) < policy.length:
        tokens.append(scorer.expand(first, first, 1).tokens[:, 0])
    return chains(tokens, torch.full_like(first[:, 0], policy.length))


def chains(tokens: list[Tensor], lengths: Tensor) -> DeviceDraft:
    """Return chains of `lengths` tokens; each of `tokens` is (batch, 1), one depth further."""
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
