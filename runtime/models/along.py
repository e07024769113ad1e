"""A target's hidden states along a known text, read once, for drafters that draft from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..layout import PREFILL_TOKENS, chain_sight, lay_out
from .lean import LeanModel


def features_along(target: LeanModel, reads: Sequence[int], text: Sequence[int]) -> Tensor:
    """Return (n, len(reads) * hidden): the target's hidden states at the token before each token of a text.

    The first token has none before it; its line is zeros. `reads` counts the layers each hidden state has passed.
    """
    cache = target.new_cache(1, len(text))
    pieces = [torch.zeros(1, len(reads) * target.hidden, dtype=target.dtype, device=target.device)]
    for start in range(0, len(text), PREFILL_TOKENS):
        piece = np.array([text[start : start + PREFILL_TOKENS]], dtype=np.int64)
        count = piece.shape[1]
        sees = chain_sight(count)
        step = lay_out(piece, np.arange(count), [start], sees, dtype=target.dtype, device=target.device)
        pieces.append(target.features(step, cache, reads)[0])
    return torch.cat(pieces)[:-1]
