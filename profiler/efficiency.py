"""Estimates for a device that was not measured: its limits, and how closely a measured device comes to its own.

Notation: A is (cells, 5), the least milliseconds of each part of a forward: layers (a count), weights, cache, matmul,
attention. x is (5,), how many times longer each part really took, so x[1:] >= 1. With "sum" a forward takes A x; with
"max" memory and arithmetic overlap, and the longer counts. Fits minimise the squared relative error over cells.

With CUDA graphs the parts were found to add up, in eager mode the longer one hid the other: the better fit is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ..errors import DeviceError, MeasurementError
from .domain import Shape
from .protocols import SurfaceKey
from .records.architecture import Architecture
from .records.efficiency import Combination, Efficiency
from .records.limits import DeviceLimits, Work
from .records.surface import LatencySurface
from .roofline import PREFILL, cell_of, shape_of, surface_of, work_of

Floats = NDArray[np.float64]
LOWEST = np.array([0.0, 1.0, 1.0, 1.0, 1.0])  # of x
MEMORY, COMPUTE = slice(1, 3), slice(3, 5)  # columns of A
FEWEST_CELLS = 8
MOST_PASSES = 20  # of the fit of "max", which usually settles in three


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSurface:
    """A measured surface and the architecture of its model."""

    surface: LatencySurface
    architecture: Architecture


def calibrate(measured: Sequence[MeasuredSurface], limits: DeviceLimits) -> Efficiency:
    """Return how closely a device comes to its limits, over all cells of its surfaces that ran.

    Surfaces of prompts do not count: their cells are many forwards, which read the weights again. Only several models
    tell whether constant time goes into launching layers or reading weights. All are of one device, regime and dtype.
    MeasurementError where the surfaces do not belong together, or too few cells ran; DeviceError where the limits have
    no matrix speed in this format.
    """
    first = _require_one_kind(measured)
    parts, measured_ms = _cells(measured, limits)
    fits = [_fitted(parts, measured_ms, combination) for combination in ("sum", "max")]
    best = min(fits, key=lambda fit: float(np.median(fit.errors)))
    shares = 1.0 / best.factors[1:]
    return Efficiency(
        device=limits.name,
        regime=first.regime,
        dtype=first.dtype,
        combination=best.combination,
        layer_ms=float(best.factors[0]),
        weights=float(shares[0]),
        cache=float(shares[1]),
        matmul=float(shares[2]),
        attention=float(shares[3]),
        cells=len(measured_ms),
        error_median=float(np.median(best.errors)),
        error_p95=float(np.quantile(best.errors, 0.95)),
        launch_us=dict(limits.launch_us).get(first.regime),
    )


def estimated_ms(architecture: Architecture, work: Work, limits: DeviceLimits, efficiency: Efficiency) -> float:
    """Return a forward's time on a device that comes as close to its limits as the calibrated one did.

    The time per layer goes with the published time between launches of both devices, where known. DeviceError where the
    limits have no matrix speed in this format.
    """
    parts = _parts(architecture, work, limits, efficiency.dtype)
    launch = dict(limits.launch_us).get(efficiency.regime)
    slower = launch / efficiency.launch_us if launch and efficiency.launch_us else 1.0
    shares = (efficiency.weights, efficiency.cache, efficiency.matmul, efficiency.attention)
    factors = np.array([efficiency.layer_ms * slower, *(1.0 / share for share in shares)])
    return float(_predicted(parts[None], factors, efficiency.combination)[0])


def estimate_surface(
    architecture: Architecture, limits: DeviceLimits, key: SurfaceKey, shapes: Sequence[Shape], efficiency: Efficiency
) -> LatencySurface:
    """Return the estimate of every shape as a surface of the regime estimated:REGIME, never below its bound.

    Regime and dtype of `key` are those of the efficiency. A shape that does not fit into memory is a failure.
    MeasurementError where the role is no whole forward, or regime or dtype are not the calibrated ones; DeviceError
    where the limits have no matrix speed in this format.
    """
    if (key.regime, key.dtype) != (efficiency.regime, efficiency.dtype):
        raise MeasurementError(
            f"calibrated on {efficiency.regime} in {efficiency.dtype}, requested for {key.regime} in {key.dtype}; "
            "measure a surface of that regime and number format first"
        )
    cells = []
    for shape in shapes:
        work = work_of(architecture, key, shape)
        ms = estimated_ms(architecture, work, limits, efficiency)
        cells.append(cell_of(shape, ms, architecture, limits, key.dtype))
    return surface_of(replace(key, regime=f"estimated:{key.regime}"), cells)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fit:
    combination: Combination
    factors: Floats  # (5,)
    errors: Floats  # (cells,), leave-one-out


def _require_one_kind(measured: Sequence[MeasuredSurface]) -> LatencySurface:
    kinds = {(each.surface.device, each.surface.regime, each.surface.dtype) for each in measured}
    if len(kinds) != 1 or measured[0].surface.origin != "measured":
        raise MeasurementError(f"calibrate on measured surfaces of one device, regime and dtype, got {sorted(kinds)}")
    return measured[0].surface


def _cells(measured: Sequence[MeasuredSurface], limits: DeviceLimits) -> tuple[Floats, Floats]:
    """Return A and the measured milliseconds (cells,) of every cell that ran and is one forward."""
    parts, measured_ms = [], []
    for each in measured:
        if each.surface.role == PREFILL:
            continue
        for cell in each.surface.measurements:
            if cell.failure is None:
                work = work_of(each.architecture, each.surface, shape_of(cell))
                parts.append(_parts(each.architecture, work, limits, each.surface.dtype))
                measured_ms.append(cell.median_ms)
    if len(parts) < FEWEST_CELLS:
        raise MeasurementError(f"{len(parts)} cells ran, too few to calibrate on; measure at least {FEWEST_CELLS}")
    return np.array(parts), np.array(measured_ms)


def _parts(architecture: Architecture, work: Work, limits: DeviceLimits, dtype: str) -> Floats:
    """Return one row of A; reading time is shared out by bytes, since the footprint as a whole sets the speed."""
    if dtype not in dict(limits.flops_per_s):
        raise DeviceError(
            f"no source says how fast {limits.name} multiplies {dtype} matrices, so there is no estimate, only a bound"
        )
    cache_bytes = work.cache_read_bytes + work.cache_write_bytes
    footprint = work.weight_bytes + cache_bytes
    reading_ms = limits.read_ms(footprint)
    weights_ms, cache_ms = reading_ms * work.weight_bytes / footprint, reading_ms * cache_bytes / footprint
    attention_ms = limits.compute_ms(work.context_flops + work.causal_flops, dtype)
    matmul_ms = limits.matmul_ms(work, dtype)
    return np.array([architecture.layers, weights_ms, cache_ms, matmul_ms, attention_ms])


def _fitted(parts: Floats, measured_ms: Floats, combination: Combination) -> _Fit:
    factors = _solve(parts, measured_ms, combination)
    kept = ~np.eye(len(parts), dtype=np.bool_)
    errors = [
        _predicted(parts[[cell]], _solve(parts[others], measured_ms[others], combination), combination)[0]
        / measured_ms[cell]
        - 1.0
        for cell, others in enumerate(kept)
    ]
    return _Fit(combination=combination, factors=factors, errors=np.abs(errors))


def _predicted(parts: Floats, factors: Floats, combination: Combination) -> Floats:
    if combination == "sum":
        return np.asarray(parts @ factors)
    memory, compute = parts[:, MEMORY] @ factors[MEMORY], parts[:, COMPUTE] @ factors[COMPUTE]
    return np.asarray(parts[:, 0] * factors[0] + np.maximum(memory, compute))


def _solve(parts: Floats, measured_ms: Floats, combination: Combination) -> Floats:
    """Return the best x; for "max" by fitting with the longer side of each cell, until the sides stay what they are."""
    factors = _least_squares(parts, measured_ms)
    if combination == "sum":
        return factors
    best, least = factors, np.inf
    for _ in range(MOST_PASSES):
        error = float(np.sum((_predicted(parts, factors, combination) / measured_ms - 1.0) ** 2))
        if error >= least:
            break
        best, least = factors, error
        is_memory = parts[:, MEMORY] @ factors[MEMORY] >= parts[:, COMPUTE] @ factors[COMPUTE]
        longer = parts.copy()
        longer[~is_memory, MEMORY] = 0.0
        longer[is_memory, COMPUTE] = 0.0
        factors = _least_squares(longer, measured_ms)
    return best


def _least_squares(parts: Floats, measured_ms: Floats) -> Floats:
    """Return x >= LOWEST that minimises the relative error of A x."""
    relative = parts / measured_ms[:, None]
    beyond, _ = nnls(relative, 1.0 - relative @ LOWEST)
    return np.asarray(beyond + LOWEST, dtype=np.float64)
