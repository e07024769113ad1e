"""Lower bounds on the latency of a forward: what its bytes and its operations take at least.

    bound = max(read bytes / bandwidth, operations / peak)

Nothing is added for launches, written results or imperfect overlap. What no implementation can leave out counts: every
weight once, the context's keys and values once, the matrix products, and attention to the context. In the least case
all tokens touch the same experts; a surface counts evenly spread routing, E (1 - (1 - k / E)^rows). The bandwidth is
that of the forward's own footprint, since what stays in a cache is not read again (`records/limits.py`).

Source: Williams, Waterman and Patterson 2009, Roofline: An Insightful Visual Performance Model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import MeasurementError
from .domain import Shape
from .protocols import SurfaceKey
from .records.architecture import Architecture
from .records.device import GIB
from .records.limits import DeviceLimits, Work
from .records.measurement import Measurement
from .records.surface import LatencySurface

PREFILL = "prefill"
WHOLE_FORWARDS = ("verify", "draft", PREFILL)


def roofline_ms(
    architecture: Architecture, limits: DeviceLimits, dtype: str, batch: int, context: int, tokens: int
) -> float:
    """Return the least milliseconds of a forward with the logits of all tokens; ModelError for an unknown dtype."""
    return least_ms(architecture.work(dtype, batch, context, tokens), limits, dtype)


def least_ms(work: Work, limits: DeviceLimits, dtype: str) -> float:
    """Return the milliseconds that so much work takes at least; operations of unknown speed take none."""
    return max(limits.read_ms(work.least_read_bytes), _least_compute_ms(work, limits, dtype))


def bound_ms(work: Work, limits: DeviceLimits, dtype: str) -> float:
    """Return the same where tokens spread evenly over experts, which more of them touch more of."""
    return max(limits.read_ms(work.read_bytes), _least_compute_ms(work, limits, dtype))


def _least_compute_ms(work: Work, limits: DeviceLimits, dtype: str) -> float:
    """Return the milliseconds of what no mask spares: a tree's node may see little more than the context."""
    return limits.matmul_ms(work, dtype) + limits.compute_ms(work.context_flops, dtype)


def bound_surface(
    architecture: Architecture, limits: DeviceLimits, key: SurfaceKey, shapes: Sequence[Shape]
) -> LatencySurface:
    """Return the bound of every shape as a surface of the regime bound:REGIME; too large a shape is a failure.

    Tokens spread evenly over experts. MeasurementError for a role that is no whole forward, or a wrong regime or shape.
    """
    cells = [
        cell_of(shape, bound_ms(work_of(architecture, key, shape), limits, key.dtype), architecture, limits, key.dtype)
        for shape in shapes
    ]
    return surface_of(replace(key, regime=f"bound:{key.regime}"), cells)


def work_of(architecture: Architecture, key: SurfaceKey | LatencySurface, shape: Shape) -> Work:
    """Return the work of a shape in a role of whole forwards, else MeasurementError; prompts have one row of logits."""
    if key.role not in WHOLE_FORWARDS:
        raise MeasurementError(f"the role {key.role} is no whole forward; use {', '.join(WHOLE_FORWARDS)}")
    return architecture.work(key.dtype, *shape, outputs=1 if key.role == PREFILL else None)


def shape_of(cell: Measurement) -> Shape:
    """Return a cell's batch, context and tokens."""
    return cell.batch, cell.context_tokens, cell.tokens


def cell_of(shape: Shape, ms: float, architecture: Architecture, limits: DeviceLimits, dtype: str) -> Measurement:
    """Return a computed cell; a failure where the shape does not fit into memory or no known speed bounds it."""
    batch, context, tokens = shape
    needed = architecture.weight_bytes(dtype) + batch * (context + tokens) * architecture.kv_bytes_per_token(dtype)
    failure = None
    if needed > limits.memory_bytes:
        failure = f"out of memory: needs {needed / GIB:.1f} GiB, {limits.name} has {limits.memory_bytes / GIB:.0f}"
    elif ms <= 0.0:
        failure = f"all of it fits into the caches of {limits.name}, and its {dtype} speed is not known"
    return Measurement(
        batch=batch,
        context_tokens=context,
        tokens=tokens,
        repeats_ms=() if failure else (ms,),
        failure=failure,
    )


def surface_of(key: SurfaceKey, cells: Sequence[Measurement]) -> LatencySurface:
    """Return the surface of a key and its cells."""
    return LatencySurface(
        device=key.device,
        model=key.model,
        role=key.role,
        regime=key.regime,
        dtype=key.dtype,
        attention=key.attention,
        measurements=tuple(cells),
    )
