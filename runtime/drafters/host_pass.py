"""A drafter model's answers read by the host: layer by layer of a draft, or behind a recorded text."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import ModelError
from ...planner.kernels.arrays import Bools, Ints
from ...planner.records.draft import Children, Scores
from ...planner.strategies import REGISTRY
from ...planner.strategies.base import grow
from ..batch.sequence import Request, Sequence, shared_temperature
from ..batch.transfer import fetched_together
from ..growth.draft import children_here, children_of, drawn_children_here
from ..kernels.trees import descend
from ..models.bits import BITS, bits, bits_for_kernels
from ..models.layout import Masks
from ..sampling.filters import draft_scores, processed, with_noise
from ..sampling.sampler import drafted_draws, is_unpenalised

if TYPE_CHECKING:
    from .model import ModelDrafter

NOTHING: Ints = np.empty((0, 0, 0), dtype=np.int64)
Found = tuple[Ints, Scores, bool]  # the likeliest tokens, their log-probabilities, and whether these are numbers


@lru_cache
def prepare(dtype: torch.dtype) -> None:
    """Load and compile what grows trees on the host, so that no round waits; once a process."""
    Masks(dtype, torch.device("cpu")).prepare()
    for strategy in REGISTRY.values():
        for policy in strategy.smallest():
            grow(policy, _Sameness(), 1)
    for kind in BITS:  # sampled scores are float32 whatever the model's are
        children_here(bits(torch.zeros((1, 1, 1), dtype=kind)), 1)


class _Sameness:
    """A `LayerScorer` that always gives the same answer, yet runs the kernels."""

    def root(self, children: int) -> Children:
        return Children(tokens=np.zeros((1, 1, 1), dtype=np.int64), log_probs=np.zeros((1, 1, 1), dtype=np.float32))

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        fed, above = np.empty((1, 1), dtype=np.int64), np.empty((1, 1, 0), dtype=np.bool_)
        descend(self.root(1).tokens, above, parents, ranks, fed, np.empty((1, 1, 1), dtype=np.bool_))
        return self.root(1)


@lru_cache
def beginning(batch: int) -> tuple[Ints, Bools]:
    """Return the empty paths of so many roots, (batch, 1, 0), and their empty sight of drafted nodes."""
    return np.empty((batch, 1, 0), dtype=np.int64), np.empty((batch, 1, 0), dtype=np.bool_)


class DraftPass:
    """One round's `LayerScorer` on the host: depth 1 from the committed text, then layer by layer."""

    def __init__(self, drafter: ModelDrafter, sequences: Many[Sequence]) -> None:
        """Start a round behind the committed text of the sequences, one per slot."""
        self._drafter = drafter
        self._sequences = sequences
        self._is_greedy = shared_temperature(sequences) == 0.0
        may_ask = is_unpenalised(sequences)
        self._asks = may_ask and drafter.finds_children  # for what is likeliest, by one call
        self._draws = drafted_draws(sequences) if may_ask else None
        self._depth = 0
        self._tokens: Ints = NOTHING
        self._paths, self._sees = beginning(len(sequences))  # (batch, width, depth), (batch, width, nodes so far)

    def root(self, children: int) -> Children:
        """Return the first layer's candidates, one row per sequence."""
        found = None
        if self._asks:
            found = self._drafter.found_behind_text(self._sequences, children, self._draws)
        return self._told(self._children(self._drafter.catch_up(self._sequences), children) if found is None else found)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Feed the chosen nodes and return their children; a row with fewer nodes feeds its first child instead."""
        (batch, width), before = parents.shape, self._sees.shape[2]
        tokens = np.empty((batch, width), dtype=np.int64)
        sees = np.empty((batch, width, before + width), dtype=np.bool_)
        descend(self._tokens, self._sees, parents, ranks, tokens, sees)
        self._sees = sees
        if not self._is_greedy:
            above = self._paths[np.arange(batch)[:, None], np.maximum(parents, 0)]
            self._paths = np.concatenate((above, tokens[:, :, None]), axis=2)
        found = None
        if self._asks:
            found = self._drafter.found_behind_layer(tokens, self._depth, sees, children, self._draws)
        if found is None:
            found = self._children(self._drafter.feed_layer(tokens, self._depth, sees, before), children)
        return self._told(found)

    def _children(self, logits: torch.Tensor, count: int) -> Found:
        known = None if self._draws is None else bits_for_kernels(logits)
        if known is not None and self._draws is not None:
            return drawn_children_here(known, self._draws, self._depth, count)
        scores = logits if self._is_greedy else draft_scores(logits, self._sequences, self._paths)
        return _likeliest(scores, count)

    def _told(self, found: Found) -> Children:
        self._depth += 1
        self._tokens, log_probs, are_numbers = found
        require_numbers(are_numbers)
        return Children(tokens=self._tokens, log_probs=log_probs)


def require_numbers(are_numbers: bool) -> None:
    """Raise ModelError where a drafter's scores are not numbers."""
    if not are_numbers:
        raise ModelError("the drafter's logits are not numbers; check its weights and its dtype")


def recorded_children(logits: torch.Tensor, count: int, request: Request, places: torch.Tensor) -> Children:
    """Return (rows, width, count): a draft pass's answer for logits at `places` (rows, width) in one request's text."""
    asked = [request] * len(logits)
    scores = with_noise(processed(logits, asked), asked, places)
    tokens, log_probs, _ = _likeliest(scores, count)
    return Children(tokens=tokens, log_probs=log_probs)


def _likeliest(scores: torch.Tensor, count: int) -> Found:
    known = bits_for_kernels(scores)
    if known is not None:
        return children_here(known, count)
    answer = children_of(scores, count)
    tokens, log_probs = fetched_together(answer.tokens, answer.log_probs)
    return tokens, log_probs, not np.isnan(log_probs[:, :, 0]).any()  # of a node's children, it comes first
