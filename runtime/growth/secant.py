"""CAST's index scan without a loop over the entries."""

from __future__ import annotations

import torch
from torch import Tensor


def last_valid_index(utilities: Tensor, costs: Tensor, threshold: float, last: Tensor) -> Tensor:
    """Return the last index whose secant from the index accepted before is steep enough, as a 0-d tensor.

    next[j] = the first k > j with  u[k] - u[j] >= threshold * (c[k] - c[j]),  j where there is none
    result  = next[next[... next[0]]]

    The comparisons are those of `cast_growth.select_max_valid_index`, so the result is equal to the bit. All are made
    at once, and squaring `next` follows the path in log2 steps. `utilities` and `costs` (n,) are float64; the 0-d
    `last` is the last index that may be chosen.
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
