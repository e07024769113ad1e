"""What the pages show of a store: read on demand, named as people name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from ...db.rows import PlanRow, SurfaceRow, TraceRow
from ...db.sql.news import SetupRow, newest_plans, setup_rows
from ...db.store import Store
from ...errors import NoPlanError, StoreError
from ...planner.plans.document import plan_from_json
from ...planner.plans.observation import Observation, moment_of
from ...planner.plans.plan import Plan
from ...planner.plans.validation import Validation
from ...profiler.protocols import SurfaceKey
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ...profiler.records.surface import LatencySurface
from ...profiler.records.wire import readable
from .links import digest
from .words import plain_device

SHORT = 6  # digits of a fingerprint
MOST_OBSERVATIONS = 500  # of one plan; what decoders saw before them is not looked at


class NoPageError(StoreError):
    """The store holds nothing of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceEntry:
    """One surface of the store, its cells not read."""

    key: SurfaceKey
    timings: int  # ever kept, older ones of the same cell included
    newest: str  # UTC, ISO 8601

    @property
    def slug(self) -> str:
        """Name the surface in 16 hex digits, whatever its key holds."""
        return digest(*(str(getattr(self.key, field.name)) for field in fields(SurfaceKey)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSetup:
    """What a plan is for; of each setup one plan counts."""

    device: str
    target: str
    workload: str
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What decoders saw of a plan, and how many of their reports cannot be read."""

    readable: tuple[Observation, ...]
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """What a plan delivered when it was measured, and how many of these records cannot be read."""

    readable: tuple[Validation, ...]
    damaged: int


class Contents:
    """A store as its pages see it; every reader goes to the store once and keeps what it found."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached_property
    def devices(self) -> dict[str, Device]:
        """Devices by fingerprint, in the order they were added."""
        return {device.fingerprint: device for device in self.store.devices()}

    @cached_property
    def _labels(self) -> Counter[str]:
        return Counter(device.label for device in self.devices.values())

    @cached_property
    def models(self) -> dict[str, ModelIdentity]:
        """Models by key."""
        return {model.key: model for model in self.store.models()}

    @cached_property
    def surfaces(self) -> list[SurfaceEntry]:
        """Every surface, in the store's order."""
        return [_entry(row) for row in self.store.surface_rows()]

    def surfaces_of(self, device: str) -> list[SurfaceEntry]:
        """Return the surfaces of one device, in the store's order."""
        return [_entry(row) for row in self.store.surface_rows(device=device)]

    @cached_property
    def traces(self) -> list[TraceRow]:
        """Every trace, oldest first."""
        return self.store.trace_rows()

    @cached_property
    def setups(self) -> dict[PlanSetup, SetupRow]:
        """Every setup that has a plan, the one with the newest plan first."""
        return {_setup_of(row): row for row in setup_rows(self.store)}

    def newest_plans(self, most: int, devices: Sequence[str] = ()) -> list[PlanRow]:
        """Return the newest plans, newest first; those of some devices only where any are given."""
        return newest_plans(self.store, most, devices)

    def versions(self, setup: PlanSetup) -> list[PlanRow]:
        """Return all plans of a setup, oldest first."""
        return self.store.plans(
            device=setup.device, target=setup.target, workload=setup.workload, temperature=setup.temperature
        )

    def device_name(self, fingerprint: str) -> str:
        """Return what people call a device; a plan is for the device behind the mark it is filed under."""
        plain = plain_device(fingerprint)
        device = self.devices.get(plain)
        return plain if device is None else self.label(device)

    def label(self, device: Device) -> str:
        """Return a device's name for people; boards and settings with the same name differ by fingerprint."""
        is_alone = self._labels[device.label] < 2
        return device.label if is_alone else f"{device.label}, {device.fingerprint[:SHORT]}"

    def model_name(self, key: str) -> str:
        """Return what people call a model."""
        model = self.models.get(key)
        return key if model is None else model.name

    def counting(self, setup: PlanSetup) -> PlanRow | None:
        """Return the plan that counts for a setup, None where all of its plans are retired."""
        try:
            return self.store.find_plan(
                device=setup.device, target=setup.target, workload=setup.workload, temperature=setup.temperature
            )
        except NoPlanError:
            return None

    def row(self, plan_id: int) -> PlanRow:
        """Return the store's row of a plan; raise NoPageError where there is none."""
        found = self.store.plans(limit=1, after=plan_id - 1)
        if found and found[0].id == plan_id:
            return found[0]
        raise NoPageError(f"there is no plan {plan_id}; list them with: spectune list")

    def plan(self, plan_id: int) -> Plan:
        """Return a plan; raise SpectuneError where it is missing or damaged."""
        return _read_plan(self.store.plan(plan_id))

    def validations(self, plan_id: int) -> Validated:
        """Return what a plan delivered when it was measured, oldest first; one that cannot be read hides no other."""
        texts = self.store.validations(plan_id)
        found = readable(Validation, texts)
        return Validated(readable=tuple(found), damaged=len(texts) - len(found))

    def observations(self, plan_id: int) -> Observed:
        """Return what decoders saw of a plan lately, in order of time; one that cannot be read hides no other."""
        texts = self.store.newest_observations(plan_id, MOST_OBSERVATIONS)
        found = readable(Observation, texts)
        in_order = sorted(found, key=lambda each: moment_of(each.began))
        return Observed(readable=tuple(in_order), damaged=len(texts) - len(found))

    def surface(self, key: SurfaceKey) -> LatencySurface:
        """Return one surface with its cells; raise NoPageError where none has the key."""
        named = {name: getattr(key, name) for name in ("role", "regime", "attention")}
        for surface in self.store.surfaces(key.device, key.model, key.dtype, **named):
            return surface
        raise NoPageError(f"there is no surface of {key.model[:32]} on {key.device[:32]}; see the overview")

    def trace(self, number: int) -> AcceptanceTrace:
        """Return one trace; raise StoreError where there is none."""
        return self.store.trace(number)


def setup_of(row: PlanRow) -> PlanSetup:
    """Return what a plan is for."""
    return PlanSetup(device=row.device, target=row.target, workload=row.workload, temperature=row.temperature)


def _setup_of(row: SetupRow) -> PlanSetup:
    return PlanSetup(device=row.device, target=row.target, workload=row.workload, temperature=row.temperature)


def _entry(row: SurfaceRow) -> SurfaceEntry:
    return SurfaceEntry(key=row.key, timings=row.timings, newest=row.newest)


@lru_cache(maxsize=64)
def _read_plan(text: str) -> Plan:
    return plan_from_json(text)
