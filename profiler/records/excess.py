"""By how much a mean forward is longer than the median one that a surface tells.

Decoding sums rounds, so what it takes is a mean. A cell's few calls cannot tell theirs: one stall would lead it. All
calls of a session together can, each beside the median of its own cell.
"""

from __future__ import annotations

import statistics

from .surface import LatencySurface

FEWEST_REPEATS = 5  # of a cell, whose median hangs on each of fewer
FEWEST_CALLS = 50  # of a surface: one stall in fewer would lead the mean
STALL = 5.0  # a call this many times longer than its like is a stall of the machine, and cut to that


def mean_over_median(surface: LatencySurface) -> float:
    """Return how many times as long as the median call of its cell a call of a surface is on average, at least 1.

    Calls count as they were timed, drift and disturbed moments included, cut to STALL. 1 where too few were timed.
    """
    often = [cell for cell in surface.measurements if cell.failure is None and len(cell.repeats_ms) >= FEWEST_REPEATS]
    ratios = [min(ms / middle, STALL) for cell in often for middle in [cell.median_ms] for ms in cell.repeats_ms]
    return max(statistics.fmean(ratios), 1.0) if len(ratios) >= FEWEST_CALLS else 1.0
