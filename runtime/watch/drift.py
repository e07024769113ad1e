"""Whether bad blocks are the majority: a test that stays valid though it is read after every block.

A gambler with 1 unit of money bets on every block i that it is bad. x_i is 1 for a bad block and -1 for a good one, or
any number >= -1 that says how bad. Money is spread over stakes s and starts j in shares 1 / (j (j + 1)), of sum 1.

  money  = mean over s of sum over j of  1 / (j (j + 1)) * prod over i = j..n of (1 + s x_i)
  run_n  = (run_(n-1) + 1 / (n (n + 1))) (1 + s x_n)         all starts up to n together
  money  = mean over s of run_n  +  1 / (n + 1)              and those still to come

Assumed: while nothing is wrong, x_i is at most 0 on average, whatever the blocks before: a block is bad with
probability at most 1/2. Then money is a non-negative supermartingale from 1, and the probability that it *ever* reaches
1 / rate is at most `rate` (Ville 1939; Ramdas et al. 2023, arXiv:2210.01948, Sec. 3). Speeds may be heavy-tailed, since
a block is only compared with a bound; rounds of one text may be alike, since blocks hold several texts. Starts in every
block detect late changes: one at block j costs 2 ln j more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ...errors import RequestError
from ...planner.kernels.arrays import Bools, Floats

STAKES = (0.2, 0.5, 0.8, 0.95)

Direction = Literal["slower", "faster"]


class EProcess:
    """Money won by betting that blocks are bad; at most 1 while they do not look so."""

    __slots__ = ("_blocks", "_runs", "money")

    def __init__(self) -> None:
        self.money = 1.0
        self._blocks = 0
        self._runs = [0.0] * len(STAKES)

    def add(self, badness: float) -> float:
        """Add the next block, good at -1 and worse the more it is above 0; return the money."""
        self._blocks += 1
        begun = 1.0 / (self._blocks * (self._blocks + 1))
        for place, stake in enumerate(STAKES):
            self._runs[place] = (self._runs[place] + begun) * (1.0 + stake * badness)
        self.money = sum(self._runs) / len(STAKES) + 1.0 / (self._blocks + 1)
        return self.money


class PromiseTest:
    """Whether measured speeds have left the interval a plan promised.

    `rate` bounds the probability of ever reporting a cell whose blocks are, whatever came before, below `low` at most
    half of the time and above `high` at most half of the time.
    """

    __slots__ = ("_above", "_below", "_limit", "found", "high", "low")

    def __init__(self, low: float, high: float, rate: float) -> None:
        """Use an interval in tokens/s; RequestError if the rate is not a probability above 0."""
        if not 0.0 < rate < 1.0:
            raise RequestError(f"a rate of false alarms is a probability, got {rate}; 0.01 is usual")
        self.low, self.high = low, high
        self.found: Direction | None = None
        self._limit = 2.0 / rate
        self._below, self._above = EProcess(), EProcess()

    def add(self, tokens_per_s: float) -> Direction | None:
        """Add the speed of a block; return the direction of a drift when it is found."""
        if self.found is not None:
            return None
        if self._below.add(1.0 if tokens_per_s < self.low else -1.0) >= self._limit:
            self.found = "slower"
        elif self._above.add(1.0 if tokens_per_s > self.high else -1.0) >= self._limit:
            self.found = "faster"
        return self.found


CHUNK = 64  # blocks; over so many, products of 0.05 and of 1.95 stay far inside a float
RICH = 1e200  # money beyond which nobody counts


def direction_of(speeds: Sequence[float], low: float, high: float, rate: float) -> Direction | None:
    """Return what a `PromiseTest` of this interval and rate has found after all of these speeds.

    With x_i, s and run_n as in `drift`, and p_n the product of (1 + s x_i) over the blocks of a chunk up to n:

      run_n = p_n (run at the chunk's beginning + sum over its blocks i <= n of  1 / (i (i + 1)) (1 + s x_i) / p_i)
    """
    told, limit = np.asarray(speeds, dtype=np.float64), 2.0 / rate
    is_below, is_above = money_of(told < low) >= limit, money_of(told > high) >= limit
    found = np.flatnonzero(is_below | is_above)
    if not len(found):
        return None
    return "slower" if is_below[found[0]] else "faster"


def money_of(is_bad: Bools) -> Floats:
    """Return (blocks,), the money of an `EProcess` after each of these blocks, exact up to `RICH`."""
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
