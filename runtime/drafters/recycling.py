"""Runs Token Recycling: one forward reads the committed tokens, then trees grow by lookup."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import Children, DraftBatch, Scores
from ...planner.strategies import TreePolicy
from ...planner.strategies.base import grow
from ..batch.sequence import Request, Sequence, shared_temperature
from ..batch.transfer import fetched_together, sent
from ..models.block import APART
from ..models.forward import ForwardInput
from ..models.kv_cache import KeyValueCache
from ..models.recycled import greedy_children, load_lookups, require_known
from ..models.recycling import RecyclingHead, SuccessorCache, Successors, left_of
from ..sampling.filters import on_rows, processed, seen_tokens
from ..sampling.noise import gumbel_of
from .features import FeatureDrafter


class RecyclingDrafter(FeatureDrafter):
    """Looks successors up beside a target that taps features; trees grow on the host: layers need no forwards."""

    def __init__(self, head: RecyclingHead, *, slots: int, capacity: int) -> None:
        super().__init__(head, head.reads, slots=slots, capacity=capacity, on_device=False)
        self.vocabulary = head.vocabulary
        self._head, self._device = head, head.device

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache; load the lookup kernels; ModelError if it lacks features."""
        super().attach(cache)
        assert isinstance(self._cache, SuccessorCache)
        load_lookups(self._cache)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the policy's trees by lookup; `widths` has one entry a layer, only the first cost a forward."""
        return grow(policy, RecyclingPass(self, sequences), len(sequences))

    def read(self, step: ForwardInput) -> Tensor:
        """Run one forward over committed text; its answers come from lookups later."""
        features = self.features_of(step)
        self.forwards += 1
        return self._head.round(features, step, self._cache)

    def looked_up(self, tokens: Ints, lengths: Ints, count: int) -> Children | None:
        """Return the children of nodes' tokens (batch, width) at temperature 0; see `greedy_children`."""
        assert isinstance(self._cache, SuccessorCache)
        return greedy_children(self._cache, tokens, lengths, count, self.vocabulary)

    def recall(self, tokens: Ints, lengths: Ints) -> Successors:
        """Return the newest successors of nodes' tokens (batch, width), on the host; lengths are (batch, 1)."""
        assert isinstance(self._cache, SuccessorCache)
        return recalled(self._cache, tokens, lengths)


def recalled(cache: SuccessorCache, tokens: Ints, lengths: Ints) -> Successors:
    """Return `SuccessorCache.recall` of host arrays, on the host, with one wait for the device."""
    device = cache.tokens.device
    found = cache.recall(sent(tokens, device), sent(lengths, device), int(lengths.max()))
    ids, log_probs = fetched_together(found.ids, found.log_probs)
    return Successors(ids=torch.from_numpy(ids), log_probs=torch.from_numpy(log_probs))


class RecyclingPass:
    """One round's `LayerScorer`: every layer is looked up behind the committed text."""

    def __init__(self, drafter: RecyclingDrafter, sequences: Many[Sequence]) -> None:
        """Start a round behind the committed text of the sequences, one per slot."""
        self._drafter, self._sequences = drafter, sequences
        self._requests = [s.request for s in sequences]
        self._is_greedy = shared_temperature(sequences) == 0.0
        self._lengths = np.array([[len(s.tokens)] for s in sequences], dtype=np.int64)
        self._tokens: Ints = np.empty((0, 0, 0), dtype=np.int64)
        self._paths: Ints = np.empty((len(sequences), 1, 0), dtype=np.int64)  # (batch, width, depth)

    def root(self, children: int) -> Children:
        """Return the first layer's candidates, one row per sequence."""
        self._drafter.catch_up(self._sequences)
        return self._answer(np.array([[s.tokens[-1]] for s in self._sequences], dtype=np.int64), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the children of chosen nodes of the last layer; a slot without a node gets an arbitrary answer."""
        rows, slots = np.arange(len(parents))[:, None], np.maximum(parents, 0)
        tokens = self._tokens[rows, slots, ranks]
        self._paths = np.concatenate((self._paths[rows, slots], tokens[:, :, None]), axis=2)
        return self._answer(tokens, children)

    def _answer(self, tokens: Ints, count: int) -> Children:
        found = self._drafter.looked_up(tokens, self._lengths, count) if self._is_greedy else None
        if found is not None:
            self._tokens = found.tokens
            return found
        known = self._drafter.recall(tokens, self._lengths)
        seen = seen_tokens(self._sequences, self._paths, torch.device("cpu"))
        places = torch.from_numpy(self._lengths + self._paths.shape[2])
        found = recycled_children(known, count, self._requests, places, self._drafter.vocabulary, seen)
        self._tokens = found.tokens
        return found


def recycled_children(
    known: Successors,
    count: int,
    requests: Many[Request],
    places: Tensor,
    vocabulary: int,
    seen: Many[Tensor] = (),
) -> Children:
    """Return the `count` likeliest next tokens behind every node, likeliest first; at most the vocabulary.

    Behind the successors, or without any, come the lowest other ids, which share the rest of the probability nearly
    evenly. A sampled request's successors carry the noise of the target's own draws; the other tokens together count as
    one that draws without noise. `known` is (batch, width, successors) on the host; `places` (batch, 1 or width), in
    the text behind each node; `seen` as `seen_tokens` gives it. ModelError: log-probabilities are not numbers.
    """
    require_known(not bool(known.log_probs.isnan().any()))
    ids, best, others = known.ids, known.log_probs, left_of(known.log_probs)
    if any(r.penalises or r.temperature > 0 for r in requests):
        shares = torch.cat(_scored(known, others, requests, places, vocabulary, seen), dim=-1).log_softmax(-1)
        best, order = shares[..., :-1].sort(dim=-1, descending=True, stable=True)
        ids, others = ids.gather(-1, order), shares[..., -1:]
    return _filled(ids.numpy(), best.numpy(), others.numpy(), min(count, vocabulary), vocabulary)


def _scored(
    known: Successors,
    others: Tensor,
    requests: Many[Request],
    places: Tensor,
    vocabulary: int,
    seen: Many[Tensor],
) -> tuple[Tensor, Tensor]:
    """Return scores (batch, width, successors), and that of all other tokens together, (batch, width, 1)."""
    scores = known.log_probs
    if any(r.penalises for r in requests):
        is_seen = torch.zeros_like(known.ids, dtype=torch.bool)
        for ids in seen:
            is_seen |= (known.ids.unsqueeze(-1) == ids.unsqueeze(-2)).any(-1)
        penalties = torch.tensor([r.repetition_penalty for r in requests]).view(-1, 1, 1)
        scores = torch.where(is_seen, scores * penalties, scores)
    rows = [row for row, r in enumerate(requests) if r.temperature > 0]
    if not rows:
        return scores, others
    scores = processed(scores, [replace(r, repetition_penalty=1.0) for r in requests])
    own, seeds = places[rows], torch.tensor([[requests[row].seed] for row in rows])
    scores = on_rows(scores, rows, lambda some: some + gumbel_of(seeds, own, known.ids[rows]))
    count = torch.tensor(float(max(vocabulary - known.ids.shape[-1], 1))).log()
    heat = torch.tensor([requests[row].temperature for row in rows]).view(-1, 1, 1)
    return scores, on_rows(others, rows, lambda some: count + (some - count) / heat)


def _filled(tokens: Ints, log_probs: Scores, others: Scores, count: int, vocabulary: int) -> Children:
    """Return the first `count` known tokens, likeliest first, and the lowest other ids behind them."""
    kept = tokens.shape[2]
    if kept < count:
        wider = ((0, 0), (0, 0), (0, count - kept))
        tokens, log_probs = np.pad(tokens, wider), np.pad(log_probs, wider, constant_values=-np.inf)
    is_said = np.isfinite(log_probs)
    if is_said[..., :count].all():
        return Children(tokens=tokens[..., :count], log_probs=log_probs[..., :count])
    ids, said = np.arange(min(count + kept, vocabulary)), is_said.sum(-1, keepdims=True)
    is_taken = ((ids[:, None] == tokens[..., None, :]) & is_said[..., None, :]).any(-1)
    turn = np.arange(count) - said  # 0 for the first of the others
    free = np.take_along_axis(np.argsort(is_taken, axis=-1, kind="stable"), np.maximum(turn, 0), axis=-1)
    last = np.take_along_axis(np.pad(log_probs, ((0, 0), (0, 0), (1, 0))), said, axis=-1)  # of what is said; else 0
    even = np.minimum(others - np.log(np.maximum(vocabulary - said, 1)), last) - APART * (turn + 1)
    return Children(
        tokens=np.where(turn < 0, tokens[..., :count], free),
        log_probs=np.where(turn < 0, log_probs[..., :count], even).astype(np.float32),
    )
