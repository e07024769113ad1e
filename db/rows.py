"""What a store says of what it holds, one record a row, and what a file brings to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface

ENGINE_PLAN = "engine:"  # stands before the device of a plan for another engine, which our decoder must not follow
WHAT_IF = "what-if:"  # stands before the device of a plan that rests on anything but measurements of that device
FILED_APART = (WHAT_IF, ENGINE_PLAN)


def mark_of(device: str) -> str:
    """Return the prefix of the device that a plan is filed under; none before a device's own plans."""
    return next((mark for mark in FILED_APART if device.startswith(mark)), "")


def key_of(surface: Any) -> dict[str, str]:  # Any: whatever has the fields of a SurfaceKey
    """Return the fields of a surface's `SurfaceKey` by name."""
    return {field.name: getattr(surface, field.name) for field in fields(SurfaceKey)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceRow:
    """One surface: its key, how many timings it ever had, and when the newest was."""

    id: int
    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: str
    regime: str
    dtype: str
    attention: str
    timings: int  # older ones of the same cell included
    newest: str  # UTC, ISO 8601

    @property
    def key(self) -> SurfaceKey:
        """What distinguishes surfaces."""
        return SurfaceKey(**key_of(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """What a store says about one trace."""

    id: int
    target: str  # ModelIdentity.key
    drafter: str  # ModelIdentity.key
    workload: str
    temperature: float
    created: str  # UTC, ISO 8601
    content_hash: str  # sha256 of the text, 64 hex digits


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """One change of a plan's state."""

    id: int
    plan_id: int
    action: str  # "promoted", "retired" or "restored"
    by: str  # who did it
    reason: str
    created: str  # UTC, ISO 8601


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What a store says about one plan; versions count the plans of one device and setup from 1."""

    id: int
    version: int
    device: str  # Device.fingerprint
    device_kind: str  # Device.kind_key
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    created: str  # UTC, ISO 8601
    content_hash: str  # sha256 of the text, 64 hex digits
    state: str = "kept"  # "kept", or its last event: "promoted", "retired" or "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """One observation or validation of a plan."""

    id: int
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """Some cells of one surface: half-open ranges of their places."""

    surface: int  # its place
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlaces:
    """Which of some records are meant, by their places: so that whoever has sent them need not get them back."""

    devices: tuple[int, ...] = ()
    models: tuple[int, ...] = ()
    cells: tuple[CellRuns, ...] = ()
    traces: tuple[int, ...] = ()
    overheads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What a file brings: surfaces, host times and traces, and the devices and models they name."""

    devices: tuple[Device, ...] = ()
    models: tuple[ModelIdentity, ...] = ()
    surfaces: tuple[LatencySurface, ...] = ()
    traces: tuple[AcceptanceTrace, ...] = ()
    overheads: tuple[RoundOverhead, ...] = ()

    @property
    def cells(self) -> int:
        """Cells of all surfaces."""
        return sum(len(surface.measurements) for surface in self.surfaces)

    def at(self, places: RecordPlaces) -> Records:
        """Return the records at these places; IndexError where there are fewer."""
        surfaces = [(self.surfaces[part.surface], part.runs) for part in places.cells]
        return Records(
            devices=tuple(self.devices[place] for place in places.devices),
            models=tuple(self.models[place] for place in places.models),
            surfaces=tuple(
                replace(surface, measurements=tuple(c for begin, end in runs for c in surface.measurements[begin:end]))
                for surface, runs in surfaces
            ),
            traces=tuple(self.traces[place] for place in places.traces),
            overheads=tuple(self.overheads[place] for place in places.overheads),
        )
