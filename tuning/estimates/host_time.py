"""Host time of rounds that were not measured: none at all, or that of another device; the plan says which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...planner.strategies import REGISTRY
from ...planner.strategies.delegating import DelegatingPolicy
from ...profiler.records.overhead import OverheadSample, RoundOverhead
from ...profiler.records.surface import LatencySurface

KINDS = (
    *("plain", "stack", "hybrid"),
    *(kind for kind, strategy in REGISTRY.items() if strategy.source == "text"),
    *(kind for kind, one in REGISTRY.items() if one.source == "model" and not issubclass(one, DelegatingPolicy)),
)
UNKNOWN = "the host time of rounds is not known and taken as 0, so that speeds are upper bounds"


def no_host_time(verify: LatencySurface) -> RoundOverhead:
    """Return 0 ms for every kind of policy, at every batch of a verify surface."""
    samples = (
        OverheadSample(kind=kind, batch=batch, draft_forwards=0, nodes=1, host_ms=(0.0,))
        for kind in KINDS
        for batch in verify.batches
    )
    return RoundOverhead(device=verify.device, target=verify.model, dtype=verify.dtype, samples=tuple(samples))


def is_known(overhead: RoundOverhead) -> bool:
    """Return whether these host times were measured."""
    return any(ms != 0.0 for sample in overhead.samples for ms in sample.host_ms)


def borrowed_host_time(measured: RoundOverhead, verify: LatencySurface) -> RoundOverhead:
    """Return the host times of another device for each batch of a verify surface, those of the nearest batch."""
    known = sorted({sample.batch for sample in measured.samples})
    samples = (
        replace(sample, batch=batch)
        for batch in verify.batches
        for sample in _of_batch(measured.samples, _nearest(batch, known))
    )
    return replace(measured, device=verify.device, samples=tuple(samples))


def _nearest(batch: int, known: Sequence[int]) -> int:
    return min(known, key=lambda other: abs(math.log(other / batch)))


def _of_batch(samples: Iterable[OverheadSample], batch: int) -> list[OverheadSample]:
    return [sample for sample in samples if sample.batch == batch]
