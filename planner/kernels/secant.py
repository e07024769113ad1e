"""The decisions of CAST, in the order of operations of `planner/growth/cast.py`."""

from __future__ import annotations

from .arrays import Floats
from .compiled import compiled


@compiled
def last_valid(utilities: Floats, costs: Floats, most: int, threshold: float) -> int:
    """Return what `cast.select_max_valid_index` does."""
    last = 0
    for index in range(1, most + 1):
        if utilities[index] - utilities[last] >= threshold * (costs[index] - costs[last]):
            last = index
    return last


@compiled
def mean_of_last(ratios: Floats, count: int, window: int) -> float:
    """Return the mean of the last `window` of so many ratios, added up one by one."""
    total, first = 0.0, max(count - window, 0)
    for at in range(first, count):
        total += ratios[at]
    return total / (count - first)
