"""CAST's index scan without a loop over the entries."""

from __future__ import annotations

import torch
from torch import Tensor


def last_valid_index(utilities: Tensor, costs: Tensor, threshold: float, last: Tensor) -> Tensor:
    """Return the last index whose secant from the index accepted before is steep enough, as a tensor of no dimension.

    next[j] = the first k > j with  u[k] - u[j] >= threshold * (c[k] - c[j]),  j where there is none
    result  = next[next[... next[0]]]

    The same comparisons as `cast_growth.select_max_valid_index`, so the same result to the bit: all are made
    at once, and the path is followed in log2 steps by squaring `next`.

    Args:
        utilities: (n,) float64.
        costs: (n,) float64.
        threshold: at least 0.
        last: no dimension, the last index that may be chosen.
    """
    count = len(utilities)
    places = torch.arange(count, device=utilities.device)
    is_steep = utilities - utilities.unsqueeze(1) >= threshold * (costs - costs.unsqueeze(1))
    is_next = is_steep & (places > places.unsqueeze(1)) & (places <= last)
    first = places.expand(count, count).masked_fill(~is_next, count).amin(dim=1)
    following = torch.where(first < count, first, places)
    for _ in range(count.bit_length()):
        following = following[following]
    return following[0]
