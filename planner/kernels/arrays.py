"""The types of the arrays that kernels read and write."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Small = NDArray[np.int16]
Counts = NDArray[np.uint8]
Floats32 = NDArray[np.float32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROOT_TOKEN = -1  # the root is the last committed token; its id is the caller's
