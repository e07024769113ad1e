"""The candidates of a tree that grows on a device: `planner.records.candidates`, in tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from .draft import DeviceChildren, DeviceDraft, DeviceScorer, rooted

NOTHING = -torch.inf  # score of what is no candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayer:
    """All children recorded by one drafter forward; candidate = slot * children + rank.

    Attributes:
        tokens, scores: (batch, candidates); float32 path log-probabilities, -inf below a slot without a node.
        parents: (batch, candidates), index among all candidates of all layers; negative = root.
        start: index of this layer's first candidate among all candidates of all layers.
        width: nodes per sequence the forward saw.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor
    children: int
    start: int
    width: int

    @property
    def end(self) -> int:
        """Index behind this layer's last candidate among all candidates of all layers."""
        return self.start + self.tokens.shape[1]


def first_layer(scorer: DeviceScorer, children: int) -> CandidateLayer:
    """Return the root's own children."""
    below = scorer.root(children)
    scores = below.log_probs[:, 0]
    return _recorded(below, scores, torch.full_like(below.tokens[:, 0], -1), start=0)


def next_layer(scorer: DeviceScorer, layer: CandidateLayer, kept: Tensor, children: int) -> CandidateLayer:
    """Return the children of the kept candidates of a layer.

    `kept` (batch, width) are in the order of their slots; -1 where there is none.
    """
    is_padding, place = kept < 0, kept.clamp(min=0)
    below = scorer.expand((place // layer.children).masked_fill(is_padding, -1), place % layer.children, children)
    above = layer.scores.gather(1, place).unsqueeze(2)
    scores = (above + below.log_probs).masked_fill(is_padding.unsqueeze(2), NOTHING)
    parents = (place + layer.start).unsqueeze(2).expand_as(below.tokens)
    return _recorded(below, scores.flatten(1), parents.flatten(1), start=layer.end)


def best_candidates(scores: Tensor, count: int) -> Tensor:
    """Return (batch, count): indices of the highest scores, best first, ties in index order."""
    return (-scores).sort(dim=1, stable=True).indices[:, :count]


def all_scores(layers: Sequence[CandidateLayer]) -> Tensor:
    """Return (batch, candidates of all layers): path log-probabilities in recorded order."""
    return torch.cat([layer.scores for layer in layers], dim=1)


def marked(chosen: Tensor, is_real: Tensor, count: int) -> Tensor:
    """Return (batch, count): True at the indices `chosen` (batch, picks) of every row that are real."""
    places = chosen.masked_fill(~is_real, count)  # one column more, for what is not real
    return torch.zeros(len(chosen), count + 1, dtype=torch.bool, device=chosen.device).scatter(1, places, True)[:, :-1]


def tree_of(layers: Sequence[CandidateLayer], is_chosen: Tensor, most: int) -> DeviceDraft:
    """Return the trees of chosen candidates in recorded order, parents before children.

    `is_chosen` (batch, candidates of all layers) is closed under parents; no row has more than `most`.
    """
    every = torch.cat([layer.parents for layer in layers], dim=1)
    places = is_chosen.cumsum(dim=1)  # node of each chosen candidate
    parents = places.gather(1, every.clamp(min=0)).masked_fill(every < 0, 0)
    targets = (places - 1).masked_fill(~is_chosen, most)  # one column more, for what is not chosen
    return rooted(
        _placed(torch.cat([layer.tokens for layer in layers], dim=1), targets, most, padding=ROOT_TOKEN),
        _placed(parents, targets, most, padding=0),
        _placed(_depths(layers), targets, most, padding=1),
        places[:, -1] + 1,
        tuple(layer.width for layer in layers),
    )


def _placed(values: Tensor, targets: Tensor, most: int, *, padding: int) -> Tensor:
    """Return (batch, most): each value in its target's column, padding where there is none."""
    room = torch.full((len(values), most + 1), padding, dtype=values.dtype, device=values.device)
    return room.scatter(1, targets, values)[:, :most]


def _depths(layers: Sequence[CandidateLayer]) -> Tensor:
    """Return (batch, candidates of all layers): 1 for the root's children, and so on."""
    return torch.cat([torch.full_like(layer.tokens, depth) for depth, layer in enumerate(layers, start=1)], dim=1)


def _recorded(below: DeviceChildren, scores: Tensor, parents: Tensor, start: int) -> CandidateLayer:
    _, width, children = below.tokens.shape
    return CandidateLayer(
        tokens=below.tokens.flatten(1), scores=scores, parents=parents, children=children, start=start, width=width
    )
