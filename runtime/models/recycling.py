"""Token Recycling: what the target predicted after a token the last time it was in the text.

    best[j]    = the k likeliest next tokens behind the text up to x[j], by the target's final norm and head
    row(x, t)  = best[j] of the newest place j < t with x[j] = x            what is known behind a text x[0..t]
    children of a node = row(the node's own token, t)

The newest token x[t] has no best[t] yet: the target has not read it. Nothing is trained: a tree is looked up node by
node, and its scores are the stored log-probabilities.

Rows come from committed places alone. The published form also takes those of rejected nodes, which depend on earlier
verified trees: then drafts are no function of the text, and no replay could predict them.

Source: Luo et al. 2024, Token Recycling, arXiv:2408.08696.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .block import RoundHead
from .forward import ForwardInput
from .kv_cache import KeyValueCache
from .lean import LeanModel
from .places import rows_of
from .recycled import PIECE, recycled_by_kernels

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Successors:
    """The likeliest next tokens after nodes, likeliest first; of equal ones the lower id."""

    ids: Tensor  # (..., successors) int64, UNKNOWN throughout where the node's token was not seen before
    log_probs: Tensor  # (..., successors) float32 at temperature 1, over the whole vocabulary; -inf where unknown


class SuccessorCache(KeyValueCache):
    """The tokens of every slot's text, each with the successors of the token before it.

    Invariant: what lies past a slot's committed length may be anything, and is not read.
    """

    def __init__(self, *, slots: int, capacity: int, successors: int, device: torch.device) -> None:
        super().__init__(layers=0, slots=slots, capacity=capacity, width=1, dtype=torch.float32, device=device)
        self.tokens = torch.full((slots, capacity), UNKNOWN, dtype=torch.int64, device=device)
        self.ids = torch.full((slots, capacity, successors), UNKNOWN, dtype=torch.int64, device=device)
        self.log_probs = torch.full((slots, capacity, successors), -torch.inf, device=device)

    def write(self, rows: Tensor, tokens: Tensor, best: Successors) -> None:
        """Set rows (n,) of slots * capacity to tokens (n,) and the successors (n, any) of those before them."""
        self.tokens.view(-1).index_copy_(0, rows, tokens)
        self.ids.flatten(0, 1).index_copy_(0, rows, best.ids)
        self.log_probs.flatten(0, 1).index_copy_(0, rows, best.log_probs)

    def recall(self, tokens: Tensor, lengths: Tensor, longest: int) -> Successors:
        """Return the newest successors of nodes' tokens, (batch, width, successors).

        `tokens` (batch, width) int64 follow the texts in the first slots, of `lengths` (batch, 1 or width) int64; the
        host knows that these are at most `longest` without a wait for the device.
        """
        text = self.tokens[: len(tokens), : longest - 1].unsqueeze(1)
        behind = torch.arange(1, text.shape[-1] + 1, device=tokens.device)  # a token's successors lie one place on
        is_known = (text == tokens.unsqueeze(2)) & (behind < lengths.unsqueeze(2))
        newest = torch.cat((torch.where(is_known, behind, 0), torch.zeros_like(tokens).unsqueeze(2)), dim=-1).amax(-1)
        rows, is_none = torch.arange(len(tokens), device=tokens.device).unsqueeze(1), (newest == 0).unsqueeze(2)
        return Successors(
            ids=self.ids[rows, newest].masked_fill(is_none, UNKNOWN),
            log_probs=self.log_probs[rows, newest].masked_fill(is_none, -torch.inf),
        )

    def move_slot(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one slot over another."""
        for kept in (self.tokens, self.ids, self.log_probs):
            kept[target, :tokens] = kept[source, :tokens]

    def swap_slots(self, one: int, other: int, tokens: int) -> None:
        """Exchange the first `tokens` positions of two slots."""
        for kept in (self.tokens, self.ids, self.log_probs):
            held = kept[one, :tokens].clone()
            kept[one, :tokens] = kept[other, :tokens]
            kept[other, :tokens] = held

    def spread(self, slots: int, tokens: int) -> None:
        """Copy the first `tokens` positions of slot 0 over the first `slots` slots."""
        for kept in (self.tokens, self.ids, self.log_probs):
            kept[1:slots, :tokens] = kept[:1, :tokens]


class RecyclingHead(RoundHead):
    """A target's likeliest `successors` per token as drafter, without weights; its forward is the target's head."""

    def __init__(self, target: LeanModel, successors: int) -> None:
        super().__init__(target, (len(target.anatomy.layers),))
        self.successors = min(successors, target.vocabulary)
        self._by_kernels = recycled_by_kernels(target)

    def new_cache(self, slots: int, capacity: int) -> SuccessorCache:
        """Return an empty cache for that many texts of at most `capacity` tokens."""
        return SuccessorCache(slots=slots, capacity=capacity, successors=self.successors, device=self.device)

    @torch.inference_mode()
    def keep(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> None:
        """Take in tokens of committed text: their ids, and the successors of the token before each."""
        assert isinstance(cache, SuccessorCache)
        if self._by_kernels is not None and self._by_kernels.keep(features, step, cache):
            return
        flat = features.flatten(0, 1)
        pieces = [self.best(flat[start : start + PIECE]) for start in range(0, len(flat), PIECE)]
        best = Successors(
            ids=torch.cat([piece.ids for piece in pieces]), log_probs=torch.cat([piece.log_probs for piece in pieces])
        )
        cache.write(rows_of(step, cache), step.tokens.view(-1), best)

    def best(self, states: Tensor) -> Successors:
        """Return the target's likeliest tokens after its last hidden states (rows, hidden), (rows, successors)."""
        logits = self._target.logits(self._target.final_norm(states)).float()
        found, ids = logits.topk(self.successors, dim=-1)
        ids, order = ids.sort(dim=-1)  # then by value, which keeps the order of equal ones
        found, by_value = found.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        return Successors(ids=ids.gather(-1, by_value), log_probs=found - logits.logsumexp(-1, keepdim=True))

    @torch.inference_mode()
    def next_logits(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in; return (rows, vocabulary), logits of the next token, evenly but for the known successors."""
        self.keep(features, step, cache)
        assert isinstance(cache, SuccessorCache)
        tokens, lengths = step.tokens, step.columns + 1
        if step.take is not None:
            tokens, lengths = (each.gather(1, step.take.unsqueeze(1)) for each in (tokens, lengths))
        known = cache.recall(tokens, lengths, step.seen)
        ids, log_probs = known.ids.flatten(0, 1), known.log_probs.flatten(0, 1)
        others = max(self.vocabulary - self.successors, 1)
        even = (left_of(log_probs) - math.log(others)).expand(-1, self.vocabulary)
        is_known = ids[:, :1] != UNKNOWN
        return torch.where(is_known, even.scatter(1, ids.clamp(min=0), log_probs), torch.zeros_like(even))

    def round(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in, which is all of a round; return the stored log-probabilities."""
        self.keep(features, step, cache)
        assert isinstance(cache, SuccessorCache)
        return cache.log_probs


def left_of(log_probs: Tensor) -> Tensor:
    """Return (..., 1): the logarithm of the probability that some (..., any) leave, at least that of 1e-9."""
    return torch.log((1.0 - log_probs.double().exp().sum(-1, keepdim=True)).clamp(min=1e-9)).to(log_probs.dtype)
