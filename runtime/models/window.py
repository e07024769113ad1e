"""Sliding windows: layers in which a token sees only the last tokens of its own text, itself included."""

from __future__ import annotations

import torch
from torch import Tensor


def windowed(bias: Tensor, window: int) -> Tensor:
    """Return a mask closed in front of the last `window` tokens that each token sees.

    A token sees one cached token for every place of its own text, in the order of the columns and itself last
    (see `ForwardInput`). So how far back a token lies is how many seen ones follow it, whichever branch of a tree
    they stand in and whatever lies between.

    Args:
        bias: (..., seen), 0 where a token sees a cache position and -inf elsewhere.
        window: at least 1.
    """
    count = (bias == 0).cumsum(-1, dtype=torch.int32)
    return bias.masked_fill(count[..., -1:] - count >= window, -torch.inf)
