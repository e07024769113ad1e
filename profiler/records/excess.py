"""By how much a mean forward is longer than the median one that a surface tells.

Decoding sums rounds, so what it takes is a mean. A cell's few repeats cannot tell theirs: one stall would lead it. All
repeats of a session together can, each beside the median of its own cell. A repeat is what a visit took per call
(`profiler/repeats.py`): what stalls a single one of several short calls is counted in the host time of rounds, from
which visits are taken off.
"""

from __future__ import annotations

import statistics

from .surface import LatencySurface

FEWEST_REPEATS = 5  # of a cell, whose median hangs on each of fewer
FEWEST_IN_ALL = 50  # of a surface: one stall in fewer would lead the mean
STALL = 5.0  # a repeat this many times longer than its like is a stall of the machine, and cut to that


def mean_over_median(surface: LatencySurface, otherwise: float = 1.0) -> float:
    """Return how many times as long as the median repeat of its cell a repeat of a surface is on average, at least 1.

    Repeats count as they were timed, drift and disturbed moments included, cut to STALL.

    Args:
        surface: of a session.
        otherwise: what is returned where too few repeats were timed: what a model that was timed more often tells of
            the same machine, where there is one.
    """
    often = [cell for cell in surface.measurements if cell.failure is None and len(cell.repeats_ms) >= FEWEST_REPEATS]
    ratios = [min(ms / middle, STALL) for cell in often for middle in [cell.median_ms] for ms in cell.repeats_ms]
    return max(statistics.fmean(ratios), 1.0) if len(ratios) >= FEWEST_IN_ALL else otherwise
