"""How much faster or slower the whole device was in each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEWEST_CELLS = 8  # fewer in a round cannot tell the device's drift from their own noise


def round_drift(repeats_ms: Sequence[Sequence[float]]) -> Floats:
    """Return each round's slowness: the median over cells of repeat / own median, scaled to a median of 1.

    Args:
        repeats_ms: one non-empty sequence per cell; repeat i was taken in round i. Cells may have seen fewer rounds.

    Returns:
        (rounds,), 1.0 in a typical round and in one of fewer than FEWEST_CELLS cells. Outliers of single cells do
        not move it.
    """
    rounds = max((len(repeats) for repeats in repeats_ms), default=0)
    ratios = np.full((len(repeats_ms), rounds), np.nan)
    for row, repeats in zip(ratios, repeats_ms, strict=True):
        row[: len(repeats)] = np.asarray(repeats) / np.median(repeats)
    drift = np.ones(rounds)
    is_told = np.sum(~np.isnan(ratios), axis=0) >= FEWEST_CELLS
    if is_told.any():
        slowness = np.nanmedian(ratios[:, is_told], axis=0)
        drift[is_told] = slowness / np.median(slowness)
    return drift
