"""Feature-level heads: small drafters that read hidden states of the target instead of the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...errors import MeasurementError
from ..cache import KeyValueCache
from ..layout import lay_out
from .forward import ForwardInput
from .lean import LeanModel

ROWS = 256  # most tokens per sequence that a head is timed with


class FeatureHead(Protocol):
    """A drafter that predicts the token behind each of its tokens from the target's hidden states there.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, Sec. 4.1; Li et al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1.
    """

    dtype: torch.dtype
    device: torch.device
    vocabulary: int
    longest_context: int
    attention: str  # the attention kernel, e.g. "sdpa"
    reads: Sequence[int]  # how many of the target's layers each hidden state it reads has passed

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache of the head's own for that many sequences of at most `capacity` tokens."""

    def forward(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary); writes the cache.

        Args:
            features: (batch, n, len(reads) * hidden), what `LeanModel.features` returns.
            step: the tokens, and where they stand.
            cache: from `new_cache`.
        """


class HeadBehind:
    """A feature-level head as a model by itself, fed with hidden states that a target had on a random text."""

    regime = "eager"

    def __init__(self, head: FeatureHead, target: LeanModel) -> None:
        """Let the target read the text once; a head of another vocabulary size is still timed."""
        self.dtype, self.device, self.attention = head.dtype, head.device, head.attention
        self.vocabulary, self.longest_context = head.vocabulary, head.longest_context
        self._head = head
        self._features = _features(target, head.reads)

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._head.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return the head's logits (batch, n, vocabulary); writes the cache.

        Raises:
            MeasurementError: more tokens per sequence than the target's text is long.
        """
        batch, count = step.tokens.shape
        if count > len(self._features):
            raise MeasurementError(f"a head is timed with at most {len(self._features)} tokens, got {count}")
        return self._head.forward(self._features[:count].expand(batch, -1, -1), step, cache)


def _features(target: LeanModel, after: Sequence[int]) -> Tensor:
    """Return (rows, len(after) * hidden): the target's hidden states on a random text."""
    rows = min(ROWS, target.longest_context)
    step = lay_out(
        np.random.default_rng(0).integers(0, target.vocabulary, (1, rows)),
        np.arange(rows),
        [0],
        np.tri(rows, dtype=np.bool_)[None],
        dtype=target.dtype,
        device=target.device,
    )
    return target.features(step, target.new_cache(1, rows), after)[0]
