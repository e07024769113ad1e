"""By how much a mean forward is longer than the median one of a surface.

Decoding sums rounds, so its time is a mean. One stall would lead a cell's few repeats, so all repeats of a session tell
it. A repeat is a visit's time per call (`profiler/repeats.py`); host times hold stalls of single calls in visits.
"""

from __future__ import annotations

import statistics

from .surface import LatencySurface

FEWEST_REPEATS = 5  # of a cell, whose median hangs on each of fewer
FEWEST_IN_ALL = 50  # of a surface: one stall in fewer would lead the mean
STALL = 5.0  # a repeat this many times longer than its like is a stall of the machine, and cut to that


def mean_over_median(surface: LatencySurface, otherwise: float = 1.0) -> float:
    """Return the mean of a surface's repeats, as timed but cut to STALL, over their cells' medians, at least 1."""
    often = [cell for cell in surface.measurements if cell.failure is None and len(cell.repeats_ms) >= FEWEST_REPEATS]
    ratios = [min(ms / middle, STALL) for cell in often for middle in [cell.median_ms] for ms in cell.repeats_ms]
    return max(statistics.fmean(ratios), 1.0) if len(ratios) >= FEWEST_IN_ALL else otherwise
