"""`PromiseTest` for many blocks at once: a page tests a million of them, which takes seconds one by one.

With x_i, s and run_n as in `drift`, and p_n the product of (1 + s x_i) over the blocks of a chunk up to n:

  run_n = p_n (run at the chunk's beginning + sum over its blocks i <= n of  1 / (i (i + 1)) (1 + s x_i) / p_i)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .drift import STAKES, Direction

CHUNK = 64  # blocks; over so many, products of 0.05 and of 1.95 stay far inside a float
RICH = 1e200  # money beyond which nobody counts

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def direction_of(speeds: Sequence[float], low: float, high: float, rate: float) -> Direction | None:
    """Return what a `PromiseTest` of this interval and rate has found after all of these speeds."""
    told, limit = np.asarray(speeds, dtype=np.float64), 2.0 / rate
    is_below, is_above = money_of(told < low) >= limit, money_of(told > high) >= limit
    found = np.flatnonzero(is_below | is_above)
    if not len(found):
        return None
    return "slower" if is_below[found[0]] else "faster"


def money_of(is_bad: Bools) -> Floats:
    """Return (blocks,), the money of an `Evidence` after each of these blocks, exact up to `RICH`."""
    blocks = len(is_bad)
    bad = np.zeros(-(-blocks // CHUNK) * CHUNK, dtype=np.bool_)
    bad[:blocks] = is_bad
    numbers = np.arange(1.0, len(bad) + 1.0)
    begun = 1.0 / (numbers * (numbers + 1.0))
    runs = sum(_runs(bad.reshape(-1, CHUNK), begun.reshape(-1, CHUNK), stake) for stake in STAKES)
    money: Floats = np.ravel(runs / len(STAKES))[:blocks] + 1.0 / (numbers[:blocks] + 1.0)
    return money


def _runs(bad: Bools, begun: Floats, stake: float) -> Floats:
    factors = np.where(bad, 1.0 + stake, 1.0 - stake)
    products = np.cumprod(factors, axis=1)
    sums = np.cumsum(begun * factors / products, axis=1)
    start, starts = 0.0, []
    for product, total in zip(products[:, -1].tolist(), sums[:, -1].tolist(), strict=True):
        starts.append(start)
        start = min(product * (start + total), RICH)
    runs: Floats = products * (np.array(starts)[:, None] + sums)
    return runs
