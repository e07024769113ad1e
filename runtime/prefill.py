"""Read a prompt into a target's cache, before its sequence joins a batch."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
from torch import Tensor

from .cache import KeyValueCache
from .layout import PREFILL_TOKENS, lay_out
from .models.forward import CausalModel


def read_prompt(target: CausalModel, cache: KeyValueCache, prompt: Many[int], slot: int) -> Tensor:
    """Read a prompt into a slot, piece by piece; return the logits behind its last token, (1, 1, vocabulary)."""
    logits = None
    for start in range(0, len(prompt), PREFILL_TOKENS):
        piece = np.array([prompt[start : start + PREFILL_TOKENS]], dtype=np.int64)
        count = piece.shape[1]
        step = lay_out(
            piece,
            np.arange(count),
            [start],
            np.tri(count, dtype=np.bool_)[None],
            take=np.array([count - 1]),
            first_slot=slot,
            dtype=target.dtype,
            device=target.device,
        )
        logits = target.forward(step, cache)
    assert logits is not None
    return logits
