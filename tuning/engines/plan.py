"""The plan job for another engine: which drafter, if any, and how many tokens, at each concurrency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from ...db.rows import ENGINE_PLAN
from ...db.sources import surface_source as stored_surface
from ...db.sources import trace_source as stored_trace
from ...db.store import Store
from ...errors import RequestError, StoreError
from ...planner.engines.choice import EngineInputs, Offer, Way, offers_at, plan_cells, walks_of
from ...planner.engines.walk import Walk
from ...planner.plans.document import plan_to_json
from ...planner.plans.plan import Plan
from ...planner.plans.provenance import Provenance, surface_source, trace_source
from ...planner.pricing.pace import pace_error
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.surface import LatencySurface
from ...profiler.snapshot import place_or_id
from ..paces import paces_of
from ..request import Identities
from ..steps import Guard, unguarded
from ..timed import DeviceSurfaces, timed_on
from .inputs import LOOKUP_ROLE, PLAIN_ROLE, ROLE, inputs_of_surfaces
from .pooling import pooled
from .record import workload_in
from .workload import is_timed_on

if TYPE_CHECKING:
    from ...db.rows import SurfaceRow

KEPT_WITHIN_S = 60.0  # seconds within which all of one profile is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlanRequest:
    """Which plan is wanted; empty concurrencies mean all that were profiled, an empty dtype the one profiled last."""

    engine: str
    target: ModelIdentity
    device: Device
    dtype: str = ""
    workload: str = "default"
    concurrencies: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecords:
    """The store's records of an engine with a target: surfaces of one regime, traces along the same texts.

    `paces` are the device's in earlier validations, over its pace when it was profiled.
    """

    surfaces: tuple[LatencySurface, ...]
    traces: tuple[AcceptanceTrace, ...]
    identities: Identities
    paces: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


def plan_engine(request: EnginePlanRequest, store: Store, guard: Guard = unguarded) -> tuple[int, Plan]:
    """Solve an engine's plan, store it apart from our own decoder's plans, and return its number and itself.

    `guard` is entered with the plan's document before it is stored.

    Raises:
        StoreError: the engine was not profiled with this target here.
        RequestError: a concurrency was not profiled.
        PlanError: the records do not fit together.
    """
    records = records_of(request, store)
    plan = solve_engine(request, records)
    sources = [*(stored_surface(surface, surface.role[:100]) for surface in records.surfaces)]
    document = plan_to_json(plan)
    with guard(document):
        number = store.add_plan(
            document,
            device=f"{ENGINE_PLAN}{plan.device.fingerprint}",
            device_kind=f"{ENGINE_PLAN}{plan.device.kind_key}",
            target=plan.target.key,
            workload=plan.workload,
            temperature=plan.temperature,
            sources=[*sources, *(stored_trace(trace) for trace in records.traces)],
        )
    return number, plan


def solve_engine(request: EnginePlanRequest, records: EngineRecords) -> Plan:
    """Return the plan of an engine's records."""
    surfaces = _of_concurrencies(request, records.surfaces)
    inputs, walks = _pooled(surfaces, records)
    inputs = replace(inputs, drift=max(inputs.drift, pace_error(request.device.kind, records.paces)))
    cells = plan_cells(inputs, seed=request.seed, walks=walks)
    return Plan(
        device=request.device,
        target=request.target,
        drafters=tuple(records.identities.drafters.items()),
        dtype=surfaces[0].dtype,
        workload=workload_in(request.engine, request.workload),
        temperature=0.0,
        cells=cells,
        provenance=Provenance(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            spectune=version("spectune"),
            surfaces=tuple(surface_source(surface) for surface in surfaces),
            traces=tuple(trace_source(trace.drafter_name, trace) for trace in records.traces),
            texts=len(inputs.texts),
            seed=request.seed,
            candidates=sum(1 + len(cell.alternatives) for cell in cells),
            pruned=0,
            censored=(),
            notes=(f"for {request.engine}, priced in its own regime ({surfaces[0].regime})", *records.notes),
        ),
    )


def offers_of_records(request: EnginePlanRequest, records: EngineRecords) -> dict[int, list[Offer]]:
    """Return every policy by concurrency as a plan prices it, plain first; errors as of `plan_engine`."""
    inputs, walks = _pooled(_of_concurrencies(request, records.surfaces), records)
    return {concurrency: offers_at(inputs, walks, concurrency) for concurrency in sorted(inputs.timed)}


def records_of(request: EnginePlanRequest, store: Store) -> EngineRecords:
    """Return the surfaces timed last on the workload, and their drafters' traces; StoreError where any is missing.

    Timed only on other workloads, an engine has no n-grams (a note says so): only models cost the same there.
    """
    start = f"engine:{request.engine}-"
    timed = timed_on(request.device.fingerprint, store)
    plain = [row for row in timed.of(request.target.key, PLAIN_ROLE, request.dtype) if row.regime.startswith(start)]
    if not plain:
        raise _missing(request, store, "rounds")
    on_workload = [row for row in plain if is_timed_on(request.workload, row.regime)]
    newest = (on_workload or plain)[0]
    found = store.surfaces(newest.device, newest.model, newest.dtype, regime=newest.regime)
    traces = _traces(request, store)
    keys = {trace.drafter: trace.drafter_name for trace in traces}
    models = {keys[key]: store.find_model(key) for key in keys if f"{ROLE}{key}" in {s.role for s in found}}
    drafters = {name: model for name, model in models.items() if model is not None}
    roles = [PLAIN_ROLE, *(f"{ROLE}{model.key}" for model in drafters.values())]
    kept = [surface for surface in found if surface.role in roles]
    searches = [surface for surface in found if surface.role.startswith(LOOKUP_ROLE)]
    return EngineRecords(
        surfaces=(*sorted(kept, key=lambda surface: surface.role != PLAIN_ROLE), *(searches if on_workload else [])),
        traces=tuple(traces),
        identities=Identities(target=request.target, drafters=drafters),
        paces=paces_of(store, f"{ENGINE_PLAN}{request.device.fingerprint}", request.target.key),
        notes=(*(() if on_workload else (_on_other_texts(request),)), *_timed_before(newest, drafters, timed)),
    )


def _pooled(surfaces: Sequence[LatencySurface], records: EngineRecords) -> tuple[EngineInputs, dict[Way, Walk]]:
    as_timed = inputs_of_surfaces(surfaces, records.traces, records.identities)
    walks = walks_of(as_timed)
    return pooled(as_timed, walks), walks


def _timed_before(plain: SurfaceRow, drafters: Mapping[str, ModelIdentity], timed: DeviceSurfaces) -> tuple[str, ...]:
    """Name the drafters timed by an earlier profile than plain decoding: drift is known only within one."""
    last = datetime.fromisoformat(plain.newest)
    names = [
        name
        for name, model in drafters.items()
        for row in timed.of(plain.model, f"{ROLE}{model.key}", plain.dtype)
        if row.regime == plain.regime and (last - datetime.fromisoformat(row.newest)).total_seconds() > KEPT_WITHIN_S
    ]
    if not names:
        return ()
    return (
        f"{', '.join(names)}: timed by an earlier profile than plain decoding was, maybe at another pace of the "
        "machine; profile all drafters at once to compare them",
    )


def _on_other_texts(request: EnginePlanRequest) -> str:
    return (
        f"n-grams do not compete: what their rounds cost hangs on the texts, and {request.engine} was not timed on "
        f"those of the workload {request.workload!r}; run: spectune profile --engine {request.engine} "
        f"--workload {request.workload!r}"
    )


def _traces(request: EnginePlanRequest, store: Store) -> Sequence[AcceptanceTrace]:
    """Return the traces recorded in the engine, else those of our own decoder: of the newest one's texts."""
    own = store.traces(request.target.key, workload_in(request.engine, request.workload), 0.0)
    found = own or store.traces(request.target.key, request.workload, 0.0)
    if not found:
        raise _missing(request, store, f"acceptance on the workload {request.workload!r}")
    newest = [prompt.prompt for prompt in found[-1].prompts]
    return [trace for trace in found if [prompt.prompt for prompt in trace.prompts] == newest]


def _of_concurrencies(request: EnginePlanRequest, surfaces: Sequence[LatencySurface]) -> list[LatencySurface]:
    wanted = request.concurrencies
    if missing := [c for c in wanted if c not in surfaces[0].batches]:
        known = ", ".join(map(str, surfaces[0].batches))
        raise RequestError(
            f"{missing[0]} sequences at once were not profiled, {known} were; run: spectune profile --engine "
            f"{request.engine} --batch {missing[0]}"
        )
    if not wanted:
        return list(surfaces)
    kept = []
    for surface in surfaces:
        cells = tuple(cell for cell in surface.measurements if cell.batch in wanted)
        if cells:
            kept.append(_with_cells(surface, cells))
    return kept


def _with_cells(surface: LatencySurface, cells: tuple[Measurement, ...]) -> LatencySurface:
    return LatencySurface(
        device=surface.device,
        model=surface.model,
        role=surface.role,
        regime=surface.regime,
        dtype=surface.dtype,
        attention=surface.attention,
        measurements=cells,
    )


def _missing(request: EnginePlanRequest, store: Store, what: str) -> StoreError:
    return StoreError(
        f"{store.url} holds no {what} of {request.engine} with {request.target.name} on {request.device.label}; run: "
        f"spectune profile --engine {request.engine} --target {place_or_id(request.target.location)} "
        "[--drafter NAME=PATH]"
    )
