"""Where a plan comes from: what priced it, what was replayed, and what had to be left out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.surface import LatencySurface


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceSource:
    """One latency surface that priced the plan."""

    model: str  # ModelIdentity.key
    role: str
    regime: str
    dtype: str
    measurements: int
    relative_error: float | None  # None: single repeats, so unknown and a guess was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """One trace that was replayed."""

    drafter: str  # name
    model: str  # ModelIdentity.key
    prompts: int
    positions: int
    prefix_exact: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A policy that could not be priced honestly in a cell."""

    batch: int
    context: int
    drafter: str | None
    label: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a plan comes from."""

    created: str  # UTC, ISO 8601
    spectune: str  # version
    surfaces: tuple[SurfaceSource, ...]
    traces: tuple[TraceSource, ...]
    texts: int
    seed: int  # of the resampling
    candidates: int  # priced, over all cells
    pruned: int  # not replayed, because a bound says that they lose
    censored: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    untried: int = 0  # stacks not replayed, because others are expected to be faster; older plans count them as pruned


def surface_source(surface: LatencySurface) -> SurfaceSource:
    """Return what a plan remembers of a surface."""
    error = surface.relative_error()
    return SurfaceSource(
        model=surface.model,
        role=surface.role,
        regime=surface.regime,
        dtype=surface.dtype,
        measurements=len(surface.measurements),
        relative_error=error if math.isfinite(error) else None,
    )


def trace_source(name: str, trace: AcceptanceTrace) -> TraceSource:
    """Return what a plan remembers of a drafter's trace."""
    return TraceSource(
        drafter=name,
        model=trace.drafter,
        prompts=len(trace.prompts),
        positions=trace.positions,
        prefix_exact=trace.prefix_exact,
        seed=trace.seed,
    )
