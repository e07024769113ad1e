"""The cost-aware tree of CAST on a device: the batch shares widths, depth and size, which the host never reads.

Layers are `max_width` wide and `max_depth` many. What the batch prunes is a mask that all sequences share; a pruned
candidate ranks behind every other one, even behind those of probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...planner.strategies.cast_growth import breadth_origin
from ..transfer import sent
from .candidates import CandidateLayer, all_scores, first_layer, marked, next_layer, tree_of
from .draft import DeviceDraft, DeviceScorer
from .secant import last_valid_index
from .survival import DeviceCurve, device_curve

if TYPE_CHECKING:
    from ...planner.strategies.cast import CastPolicy

IMPOSSIBLE = 1e300  # sorts behind the negative log-probability of anything possible, and before what is pruned


def grow(policy: CastPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return trees of one shared size and shared widths; see `planner.strategies.cast_growth`."""
    rule = memory(policy, scorer.device)
    layers = [first_layer(scorer, policy.max_width)]
    is_real = [torch.ones_like(layers[0].tokens[0], dtype=torch.bool)]  # candidates that the batch has not pruned
    is_open = torch.ones((), dtype=torch.bool, device=scorer.device)
    ratios = [torch.ones((), dtype=torch.float64, device=scorer.device)]
    last: Tensor | None = None  # utility of the layer before
    while len(layers) < policy.max_depth:
        ranked = _best_real(layers[-1].scores, is_real[-1], policy.max_width)
        utilities = _utilities(rule.survivals(layers[-1].scores, len(layers)), ranked)
        width = _kept_width(rule, utilities, is_real[-1].sum(), policy.breadth)
        utility = utilities.take(width)
        if last is not None:
            ratios.append((utility / last).masked_fill(last <= 0, 0.0))
        last = utility
        is_open = is_open & ~(_mean(ratios[-policy.ratio_window :]) * utility < policy.depth * rule.draft.take(width))
        if scorer.none_open(is_open):
            break
        is_kept = (torch.arange(ranked.shape[1], device=scorer.device) < width) & is_open
        layers.append(next_layer(scorer, layers[-1], ranked.masked_fill(~is_kept, -1), policy.max_width))
        is_real.append(is_kept.unsqueeze(1).expand(-1, layers[-1].children).flatten())
    return _reranked(policy, rule, layers, torch.cat(is_real))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The numbers of a CAST policy on a device; costs in units of one plain decoding step, float64."""

    draft: Tensor  # by width
    breadth: Tensor  # the same, its entry 0 the fixed cost of a forward
    verify: Tensor  # by drafted nodes
    curves: tuple[DeviceCurve, ...]

    def survivals(self, scores: Tensor, depth: int) -> Tensor:
        if not self.curves:
            return scores.double().exp()
        return self.curves[min(depth, len(self.curves)) - 1].at(scores)


@lru_cache(maxsize=256)
def memory(policy: CastPolicy, device: torch.device) -> _Rule:
    """Return a policy's costs on a device; cached, a tree is grown every round."""
    unit = policy.verify_cost_ms[1]
    draft = [cost / unit for cost in policy.draft_cost_ms]
    origin = breadth_origin(draft) if policy.max_width > 1 else 0.0
    return _Rule(
        draft=_on(device, draft),
        breadth=_on(device, [origin, *draft[1:]]),
        verify=_on(device, [cost / unit for cost in policy.verify_cost_ms[1:]]),
        curves=tuple(device_curve(curve, device) for curve in policy.survival),
    )


def _on(device: torch.device, costs: list[float]) -> Tensor:
    return sent(np.array(costs, dtype=np.float64), device)


def _best_real(scores: Tensor, is_real: Tensor, count: int) -> Tensor:
    """Return (batch, count): indices of the best candidates that are not pruned, then of others."""
    order = (-scores).double().clamp(max=IMPOSSIBLE).masked_fill(~is_real, torch.inf)
    return order.sort(dim=1, stable=True).indices[:, :count]


def _utilities(survived: Tensor, ranked: Tensor) -> Tensor:
    """Return u_0 = 0, u_1, ...: batch mean of the summed survivals of the best k, added up in the planner's order."""
    mean = survived.gather(1, ranked).cumsum(dim=0)[-1] / len(ranked)
    return torch.nn.functional.pad(mean.cumsum(dim=0), (1, 0))


def _mean(ratios: list[Tensor]) -> Tensor:
    total = ratios[0]
    for ratio in ratios[1:]:
        total = total + ratio
    return total / len(ratios)


def _kept_width(rule: _Rule, utilities: Tensor, real: Tensor, threshold: float) -> Tensor:
    if len(utilities) == 2:
        return torch.ones_like(real)
    return last_valid_index(utilities, rule.breadth[: len(utilities)], threshold, real).clamp(min=1)


def _reranked(policy: CastPolicy, rule: _Rule, layers: list[CandidateLayer], is_real: Tensor) -> DeviceDraft:
    scores = all_scores(layers)
    ranked = _best_real(scores, is_real, policy.max_verify_tokens - 1)
    survived = torch.cat([rule.survivals(layer.scores, depth) for depth, layer in enumerate(layers, start=1)], dim=1)
    utilities = 1.0 + _utilities(survived, ranked)
    drafts = last_valid_index(utilities, rule.verify[: len(utilities)], policy.rerank, is_real.sum())
    is_kept = torch.arange(ranked.shape[1], device=ranked.device) < drafts
    return tree_of(layers, marked(ranked, is_kept, scores.shape[1]), ranked.shape[1])
