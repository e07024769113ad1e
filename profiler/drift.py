"""How much slower or faster the whole device was at every timed call, and which calls were disturbed.

A timed call is cost x slowness of the moment x noise, a sum of logarithms. The slowness of a moment is the median
distance of the calls around it, of whatever cells, from their cells' medians. Costs and slowness are found in turn, as
in Tukey's median polish. No call judges its own moment, so the window of neighbours is the one that leaves least
unexplained: short where the speed changes within a hundredth of a second, long where slowly, none where it is steady.

A moment need not slow all shapes alike. Where neighbours take memory bandwidth, forwards of few rows, which only read
weights, take 1.45 times as long, those of 16 rows 1.1 times, and those of 64 rows as long as ever (a 1.5B in bf16 on 2
cores of a shared Zen 4). So a call feels the moment by its cell's *sensitivity*:

    log slowness of a call = sensitivity x mood of the moment        sensitivity = (least cost / cost) ^ exponent

The least cost is its surface's. Exponent 0 slows all alike; it is chosen as the window is. Pooled costs
(`records/pooling.py`) also use the surface's form where calls are few and long, and cells timed once then tell moods.

Source: the polish is Tukey 1977, Exploratory Data Analysis, chapter 11; the local window and the sensitivity are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .records.measurement import NORMAL_FROM_MAD

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Pool = Callable[[Floats], Floats]  # logarithms of all cells' costs, (cells,), to better ones
WINDOWS = (3, 6, 12, 25)  # calls on either side that tell a moment's slowness
EXPONENTS = (0.0, 1.0, 2.0)  # of sensitivities
SWEEPS = 4  # of the median polish; it settles within a few
LEAST_FELT = 1e-3  # sensitivity, so that what feels nothing can be divided by it
MOST_MOOD = 3.0  # logarithm of the slowness of a moment, twentyfold, where costs are pooled
FEWEST_CALLS = 12  # revisited calls a session needs; fewer cannot tell the device's drift from their own noise
DISTURBED = 1.5  # slowness beyond which a moment is a disturbance, not a mood


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """What moments did to the calls in them: `slowness` and `is_disturbed` are (calls,), 1.0 at a typical moment.

    `window` is calls on either side, 0 where drift was not told from noise; `exponent` 0 slows all shapes alike.
    """

    slowness: Floats
    is_disturbed: Bools
    window: int
    exponent: float = 0.0


def fit_drift(
    ms: Floats,
    cells: Ints,
    windows: Sequence[int] = WINDOWS,
    *,
    surfaces: Ints | None = None,
    exponents: Sequence[float] = EXPONENTS,
    pool: Pool | None = None,
    apart: Bools | None = None,
) -> Drift:
    """Return the slowness of every call.

    `ms`, `cells` and `surfaces` are (calls,), in the order timed; no `surfaces` means one. Of windows and exponents
    those win that leave the least unexplained, or none. `pool` betters the costs of cells by each other, so
    that calls of cells timed once tell moods, too; but those that are `apart`, (calls,), which it leaves as they are.
    """
    logs = np.log(ms)
    is_pooled = np.full(len(ms), pool is not None) & (True if apart is None else ~apart)
    told = np.flatnonzero((np.bincount(cells, minlength=1)[cells] > 1) | is_pooled)
    own = np.zeros(len(ms), dtype=np.int64) if surfaces is None else surfaces
    slowness, window, exponent = np.zeros(len(ms)), 0, 0.0
    if len(told) >= FEWEST_CALLS:
        least = _unexplained(logs[told], cells[told], pool)
        mood = np.zeros(len(told))
        for power in exponents:
            for candidate in windows:
                fitted, left = _fit(logs[told], cells[told], own[told], candidate, power, pool)
                if left < least:
                    mood, window, exponent, least = fitted, candidate, power, left
        if window:
            felt = _sensitivity(_costs(logs, cells, pool), cells, own, exponent)
            slowness = felt * np.interp(np.arange(len(ms)), told, mood)
    return Drift(slowness=np.exp(slowness), is_disturbed=slowness > np.log(DISTURBED), window=window, exponent=exponent)


def group_medians(values: Floats, groups: Ints, count: int | None = None) -> Floats:
    """Return (groups,): the median of each group's values, NaN where a group has none."""
    size = int(groups.max(initial=-1)) + 1 if count is None else count
    medians = np.full(size, np.nan)
    ordered = values[np.lexsort((values, groups))]
    numbers = np.bincount(groups, minlength=size)
    starts = np.concatenate([[0], np.cumsum(numbers)[:-1]])
    filled = numbers > 0
    low = starts[filled] + (numbers[filled] - 1) // 2
    high = starts[filled] + numbers[filled] // 2
    medians[filled] = (ordered[low] + ordered[high]) / 2
    return medians


def robust_scale(residuals: Floats) -> float:
    """Return the standard deviation a normal sample of this median absolute deviation has; 0.0 of nothing."""
    return float(NORMAL_FROM_MAD * np.median(np.abs(residuals))) if len(residuals) else 0.0


def _fit(
    logs: Floats, cells: Ints, surfaces: Ints, window: int, exponent: float, pool: Pool | None
) -> tuple[Floats, float]:
    """Return (calls,) the mood of every moment, and what it leaves unexplained."""
    mood, felt = np.zeros(len(logs)), np.ones(len(logs))
    for _ in range(SWEEPS):
        costs = _costs(logs - felt * mood, cells, pool)
        felt = _sensitivity(costs, cells, surfaces, exponent)
        mood = _around((logs - costs[cells]) / felt, felt * felt, window)
        mood -= np.median(mood)
        if pool is not None:  # what hardly feels a moment says little of it, and may say anything
            mood = np.clip(mood, -MOST_MOOD, MOST_MOOD)
    return mood, _unexplained(logs - felt * mood, cells, pool)


def _costs(logs: Floats, cells: Ints, pool: Pool | None) -> Floats:
    medians = group_medians(logs, cells)
    return medians if pool is None else pool(medians)


def _sensitivity(costs: Floats, cells: Ints, surfaces: Ints, exponent: float) -> Floats:
    """Return (calls,) how much of a moment's mood each call feels, from the logarithms of costs, (cells,)."""
    own = costs[cells]
    least = np.full(int(surfaces.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, surfaces, own)
    felt: Floats = np.exp(-exponent * (own - least[surfaces]))
    return np.maximum(felt, LEAST_FELT)


def _around(values: Floats, weights: Floats, window: int) -> Floats:
    """Return (calls,): the weighted median of up to `window` values on either side, the call's own left out."""
    views, shares = (_beside(own, window) for own in (values, weights))
    order = np.argsort(views, axis=1, kind="stable")
    ordered, sums = (np.take_along_axis(own, order, axis=1) for own in (views, shares))
    sums = np.cumsum(sums, axis=1)
    half = sums[:, -1:] / 2
    low = (sums >= half * (1 - 1e-9)).argmax(axis=1)
    high = (sums > half * (1 + 1e-9)).argmax(axis=1)
    rows = np.arange(len(values))
    medians: Floats = (ordered[rows, low] + ordered[rows, high]) / 2
    return medians


def _beside(values: Floats, window: int) -> Floats:
    """Return (calls, 2 * window): what lies around each value; zeros beyond the ends."""
    edge = np.zeros(window)
    views = np.lib.stride_tricks.sliding_window_view(np.concatenate([edge, values, edge]), 2 * window + 1)
    return np.delete(views, window, axis=1)


def _unexplained(logs: Floats, cells: Ints, pool: Pool | None) -> float:
    """Return the mean distance of calls from their cells' costs, an outlier counted as a doubling."""
    left = logs - _costs(logs, cells, pool)[cells]
    return float(np.minimum(np.abs(left), np.log(2.0)).mean())
