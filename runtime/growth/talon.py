"""The tree of TALON on a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .candidates import NOTHING, best_candidates, first_layer, next_layer, tree_of
from .draft import DeviceDraft, DeviceScorer

if TYPE_CHECKING:
    from ...planner.strategies.talon import TalonPolicy


def grow(policy: TalonPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return trees of `policy.nodes` nodes, fewer where depth or candidates end before; see `planner.strategies.talon`.

    A forward is as wide as any sequence could need; see `planner.strategies.base`.
    """
    layers = [first_layer(scorer, policy.children)]
    room = torch.full_like(layers[0].tokens[:, 0], policy.nodes - 1)
    chosen: list[Tensor] = []
    expanded = policy.most_expanded
    while True:
        scores, depth = layers[-1].scores, len(layers)
        ranked = best_candidates(scores, policy.nodes - depth)
        fits = _fitting(policy, scores, ranked, room, is_first=depth == 1)
        chosen.append(torch.zeros_like(scores, dtype=torch.bool).scatter(1, ranked, fits))
        room = room - fits.sum(dim=1)
        goes_on = fits & (room > 0).unsqueeze(1)
        if depth == policy.max_depth or depth > len(expanded) or scorer.none_open(goes_on):
            return tree_of(layers, torch.cat(chosen, dim=1), policy.nodes - 1)
        frontier = ranked.masked_fill(~goes_on, -1)[:, : expanded[depth - 1]]
        layers.append(next_layer(scorer, layers[-1], frontier, policy.children))


def _fitting(policy: TalonPolicy, scores: Tensor, ranked: Tensor, room: Tensor, *, is_first: bool) -> Tensor:
    """Return (batch, ranked): which of the ranked candidates join the tree; always a prefix of them."""
    places = torch.arange(ranked.shape[1], device=ranked.device)
    best = scores.gather(1, ranked)
    fits = (best > NOTHING) & (places < room.unsqueeze(1))
    if is_first:
        return fits & (places < policy.top_k)
    precise = best.double()
    return fits & (precise >= precise[:, :1] + math.log(policy.gate))
