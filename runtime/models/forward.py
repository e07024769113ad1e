"""One forward of a causal language model over new tokens of several sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..cache import KeyValueCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """New tokens for `batch` neighbouring slots, starting at slot `first_slot`.

    Token j of row b is written at cache position `columns[b, j]` and sees the positions that
    `bias` leaves open.

    Invariant: what a token sees is its own text, one cached token for every place in it up to its own; further right
    in the cache is further on in the text. So a token that sees everything is the only new one of its row. Padding,
    whose output nobody reads, may see anything but nothing at all.
    """

    tokens: Tensor  # (batch, n) int64
    positions: Tensor  # (batch, n) int64, place in the text: context + depth
    columns: Tensor  # (batch, n) int64, place in the cache
    bias: Tensor | None  # (batch, n, seen) 0 or -inf, model dtype; None: every token sees everything
    seen: int  # cache positions in sight, new tokens included
    take: Tensor | None = None  # (batch,) the only token of each row whose output is wanted
    first_slot: int = 0

    @property
    def signature(self) -> tuple[int, ...]:
        """What must be equal for a forward captured or compiled once to serve another input too."""
        batch, count = self.tokens.shape
        return batch, count, self.seen, self.first_slot, self.bias is None, self.take is None


class CausalModel(Protocol):
    """A causal language model that reads and writes an explicit cache."""

    dtype: torch.dtype
    device: torch.device
    vocabulary: int
    longest_context: int
    regime: str  # how forwards run: "eager", ...; see profiler.records.role
    attention: str  # the attention kernel, e.g. "sdpa"

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
