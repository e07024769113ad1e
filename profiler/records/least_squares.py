"""Least squares with coefficients that are times: none is below 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def non_negative_fit(rows: Floats, values: Floats) -> Floats:
    """Return the coefficients (columns,) of at least 0 by which rows come nearest to the values.

    Source: Lawson and Hanson 1974, chapter 23.
    """
    from scipy.optimize import nnls

    found: Floats = nnls(rows, values)[0]
    return found
