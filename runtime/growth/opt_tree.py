"""The tree of OPT-Tree on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .candidates import NOTHING, CandidateLayer, best_candidates, first_layer, marked, next_layer, tree_of
from .draft import DeviceDraft, DeviceScorer

if TYPE_CHECKING:
    from ...planner.strategies.opt_tree import OptTreePolicy


def grow(policy: OptTreePolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return the best candidates of all layers drafted, and the root; see `planner.strategies.opt_tree`."""
    layers = [first_layer(scorer, policy.children)]
    best = _Best.none(layers[0].scores, policy.nodes)
    gained, is_open = best.expected(), torch.ones_like(layers[0].tokens[:, 0], dtype=torch.bool)
    while True:
        ranked = best_candidates(layers[-1].scores, policy.nodes)
        best = best.with_layer(layers[-1], ranked)
        before, gained = gained, best.expected()
        is_open = is_open & (gained - before > policy.least_gain)
        wanted = (layers[-1].scores.gather(1, ranked) > NOTHING) & is_open.unsqueeze(1)
        if len(layers) == policy.max_depth or scorer.none_open(wanted):
            return tree_of(layers, best.chosen(layers[-1].end), policy.nodes)
        layers.append(next_layer(scorer, layers[-1], ranked.masked_fill(~wanted, -1), policy.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best candidates of all layers so far, best first, ties in recorded order; (batch, nodes) each.

    Missing ones have scores of -inf at the end; their candidates are meaningless.
    """

    scores: Tensor
    candidates: Tensor  # index among all candidates of all layers

    @classmethod
    def none(cls, like: Tensor, nodes: int) -> _Best:
        scores = torch.full((len(like), nodes), NOTHING, dtype=like.dtype, device=like.device)
        return cls(scores=scores, candidates=torch.zeros_like(scores, dtype=torch.int64))

    def with_layer(self, layer: CandidateLayer, ranked: Tensor) -> _Best:
        scores = torch.cat((self.scores, layer.scores.gather(1, ranked)), dim=1)
        candidates = torch.cat((self.candidates, ranked + layer.start), dim=1)
        order = best_candidates(scores, self.scores.shape[1])
        return _Best(scores=scores.gather(1, order), candidates=candidates.gather(1, order))

    def expected(self) -> Tensor:
        """Return (batch,) float64: E, the sum of the path probabilities, added up best first."""
        return self.scores.double().exp().cumsum(dim=1)[:, -1]

    def chosen(self, count: int) -> Tensor:
        """Return (batch, count), all candidates of all layers: which are among the best."""
        return marked(self.candidates, self.scores > NOTHING, count)
