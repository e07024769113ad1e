"""How far a device stays behind its limits: what turns a bound into an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import MeasurementError

Combination = Literal["sum", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Time per layer whatever the shape, and the share of each limit that forwards of one device reach.

    t = layer_ms * layers + combination(memory, compute)
    memory  = weight bytes / (weights * bandwidth) + cache bytes / (cache * bandwidth)
    compute = matrix products / (matmul * peak) + attention / (attention * peak)
    """

    device: str  # name of the device it was fitted on
    regime: str  # of the surfaces it was fitted on
    dtype: str
    combination: Combination  # memory and compute one after the other, or at once
    layer_ms: float
    weights: float  # shares lie in (0, 1]
    cache: float
    matmul: float
    attention: float
    cells: int  # fitted on
    error_median: float  # leave-one-out: every cell predicted by a fit on the others, |predicted / measured - 1|
    error_p95: float
    launch_us: float | None = None  # of the device it was fitted on, in this regime; None where it is not known

    def __post_init__(self) -> None:
        shares = (self.weights, self.cache, self.matmul, self.attention)
        if not all(0.0 < share <= 1.0 for share in shares):
            raise MeasurementError(f"{self}: shares of limits must lie in (0, 1]")
        if not 0.0 <= self.layer_ms < math.inf or self.cells < 1:
            raise MeasurementError(f"{self}: need layer_ms >= 0 and at least one cell")
        if self.combination not in ("sum", "max"):
            raise MeasurementError(f"{self}: combination must be 'sum' or 'max'")
