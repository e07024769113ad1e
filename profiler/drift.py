"""How much slower or faster the whole device was at every timed call, and which calls were disturbed.

A timed call is cost x slowness of the moment x noise. On a logarithmic scale that is a sum. The slowness of a moment is
what the calls just before and after it, of whatever cells, say together: the median of their distances from their own
cells' medians. Costs and slowness are found in turn, as in Tukey's median polish. A call never judges its own moment,
so the window of neighbours can be chosen by what it leaves unexplained: short where the machine's speed changes from
one hundredth of a second to the next, long where it changes slowly, none where it is steady.

Source: the polish is Tukey 1977, Exploratory Data Analysis, chapter 11; the local window is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .records.measurement import NORMAL_FROM_MAD

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
WINDOWS = (3, 6, 12, 25)  # calls on either side that tell a moment's slowness
SWEEPS = 4  # of the median polish; it settles within a few
FEWEST_CALLS = 12  # revisited calls a session needs; fewer cannot tell the device's drift from their own noise
DISTURBED = 1.5  # slowness beyond which a moment is a disturbance, not a mood


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """What moments did to the calls in them.

    Attributes:
        slowness: (calls,), 1.0 at a typical moment.
        is_disturbed: (calls,).
        window: calls on either side that told it; 0 where drift was not told apart from noise.
    """

    slowness: Floats
    is_disturbed: Bools
    window: int


def fit_drift(ms: Floats, cells: Ints, windows: Sequence[int] = WINDOWS) -> Drift:
    """Return the slowness of every call's moment.

    Args:
        ms: (calls,), as timed, in the order they were timed.
        cells: (calls,), which cell each call was of.
        windows: to choose from; the one that leaves the least unexplained wins, none where none helps.
    """
    logs = np.log(ms)
    told = np.flatnonzero(np.bincount(cells, minlength=1)[cells] > 1)
    slowness, window = np.zeros(len(ms)), 0
    if len(told) >= FEWEST_CALLS:
        least = _unexplained(logs[told], cells[told])
        for candidate in windows:
            fitted, left = _fit(logs[told], cells[told], candidate)
            if left < least:
                slowness[told], window, least = fitted, candidate, left
    if window:
        slowness = np.interp(np.arange(len(ms)), told, slowness[told])
    return Drift(slowness=np.exp(slowness), is_disturbed=slowness > np.log(DISTURBED), window=window)


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


def _fit(logs: Floats, cells: Ints, window: int) -> tuple[Floats, float]:
    """Return (calls,) log slowness, and what it leaves unexplained."""
    slowness = np.zeros(len(logs))
    for _ in range(SWEEPS):
        away = logs - group_medians(logs - slowness, cells)[cells]
        slowness = _around(away, window)
        slowness -= np.median(slowness)
    return slowness, _unexplained(logs - slowness, cells)


def _around(values: Floats, window: int) -> Floats:
    """Return (calls,): the median of up to `window` values on either side, the call's own left out."""
    edge = np.full(window, np.nan)
    padded = np.concatenate([edge, values, edge])
    views = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1)
    beside = np.delete(views, window, axis=1)
    medians = np.empty(len(values))
    inside = slice(window, max(len(values) - window, window))
    medians[inside] = np.median(beside[inside], axis=1)
    for ends in (slice(0, inside.start), slice(inside.stop, None)):
        medians[ends] = np.nanmedian(beside[ends], axis=1)
    return medians


def _unexplained(logs: Floats, cells: Ints) -> float:
    """Return the mean distance of calls from their cells' medians, an outlier counted as a doubling."""
    left = logs - group_medians(logs, cells)[cells]
    return float(np.minimum(np.abs(left), np.log(2.0)).mean())
