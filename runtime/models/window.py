"""Sliding windows: layers in which a token sees only the last tokens of its text, itself included."""

from __future__ import annotations

import torch
from torch import Tensor


def windowed(bias: Tensor, window: int) -> Tensor:
    """Return a mask (..., seen) of 0 and -inf, closed before the last `window` >= 1 tokens that each token sees.

    A token sees one cached token per place of its text, in order, itself last (see `ForwardInput`). So how far back a
    token lies is how many seen ones follow it.
    """
    count = (bias == 0).cumsum(-1, dtype=torch.int32)
    return bias.masked_fill(count[..., -1:] - count >= window, -torch.inf)
