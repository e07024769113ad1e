"""The plan job: from what the store holds about a target on a device to a stored plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from ..db.store import Store
from ..errors import StoreError
from ..planner.cost import Cell, cells_of
from ..planner.inputs import DrafterInputs, PlanInputs
from ..planner.plan import Plan, plan_to_json
from ..planner.search import solve
from ..profiler.records.device import Device
from ..profiler.records.match import match_devices, nearest
from ..profiler.records.model import ModelIdentity
from ..profiler.records.surface import LatencySurface
from .profile import Profile

RUNTIME_REGIMES = ("eager", "eager-transformers")  # how the decoder runs; preferred where several were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which plan is wanted; empty batches or contexts mean all that were measured."""

    target: ModelIdentity
    device: Device
    dtype: str = "bfloat16"
    workload: str = "default"
    temperature: float = 0.0
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    regime: str = ""  # of the surfaces; the target's newest measured one where empty
    seed: int = 0


def make_plan(request: PlanRequest, store: Store) -> Plan:
    """Solve the plan from what the store holds, keep it there, and return it.

    Raises:
        StoreError: a measurement or trace is missing; the message says how to make it.
        PlanError: the store's records do not fit together.
    """
    inputs = inputs_from_store(request, store)
    return solve_and_store(inputs, request, store)


def inputs_of(profile: Profile, *, dtype: str) -> PlanInputs:
    """Return what a fresh profile measured as the planner's inputs."""
    traces = {trace.drafter_name: trace for trace in profile.traces}
    return PlanInputs(
        device=profile.device,
        target=profile.identities.target,
        dtype=dtype,
        verify=profile.verify,
        overhead=profile.overhead,
        drafters=tuple(
            DrafterInputs(name=name, model=model, surface=profile.drafts[name], trace=traces[name])
            for name, model in profile.identities.drafters.items()
        ),
    )


def solve_and_store(inputs: PlanInputs, request: PlanRequest, store: Store) -> Plan:
    """Solve, keep the plan in the store, and return it."""
    plan = solve(
        inputs,
        _cells(inputs.verify, request),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spectune=version("spectune"),
        seed=request.seed,
    )
    store.add_plan(
        plan_to_json(plan),
        device=plan.device.fingerprint,
        device_kind=plan.device.kind_key,
        target=plan.target.key,
        workload=plan.workload,
        temperature=plan.temperature,
    )
    return plan


def inputs_from_store(request: PlanRequest, store: Store) -> PlanInputs:
    """Return the newest measurements and traces of a setup.

    Raises:
        StoreError: something is missing.
    """
    traces = store.traces(request.target.key, request.workload, request.temperature)
    overhead = store.overhead(request.device.fingerprint, request.target.key, request.dtype)
    verify = _surface(store, request, request.target, "verify")
    if overhead is None or not traces:
        what = "host time per round" if overhead is None else f"trace of the workload {request.workload!r}"
        raise _missing(what, request, store)
    texts = traces[-1].prompts
    newest = [t for t in traces if [p.prompt for p in t.prompts] == [p.prompt for p in texts]]
    drafters = []
    for trace in newest:
        model = store.find_model(trace.drafter)
        if model is None:
            raise _missing(f"model {trace.drafter_name}", request, store)
        surface = _surface(store, request, model, "draft")
        drafters.append(DrafterInputs(name=trace.drafter_name, model=model, surface=surface, trace=trace))
    return PlanInputs(
        device=request.device,
        target=request.target,
        dtype=request.dtype,
        verify=verify,
        overhead=overhead,
        drafters=tuple(drafters),
    )


def _cells(verify: LatencySurface, request: PlanRequest) -> tuple[Cell, ...]:
    batches = request.batches or verify.batches
    contexts = request.contexts or verify.full_contexts
    return cells_of(batches, contexts)


def _surface(store: Store, request: PlanRequest, model: ModelIdentity, role: str) -> LatencySurface:
    """Return the measured surface of one regime; estimates and imports are never taken for measurements."""
    found = store.surfaces(request.device.fingerprint, model.key, request.dtype, role=role)
    wanted = [s for s in found if s.origin == "measured" and (not request.regime or s.regime == request.regime)]
    if not wanted:
        raise _missing(f"{role} surface of {model.name} in {request.dtype}", request, store)
    runtime = [surface for surface in wanted if surface.regime in RUNTIME_REGIMES]
    return (runtime or wanted)[-1]


def _missing(what: str, request: PlanRequest, store: Store) -> StoreError:
    return StoreError(
        f"the store holds no {what} for {request.target.name} on {request.device.label}{_nearest(request, store)}; "
        f"run: spectune profile --target {request.target.location} --drafter NAME=PATH"
    )


def _nearest(request: PlanRequest, store: Store) -> str:
    """Say which measured device comes nearest, and how it differs."""
    measured = {surface.device for surface in store.surfaces(model=request.target.key)}
    others = [d for d in store.devices() if d.fingerprint in measured and d.fingerprint != request.device.fingerprint]
    near = nearest(request.device, others)
    if near is None:
        return ""
    seen = ", ".join(str(each) for each in match_devices(request.device, near).differences)
    return f" (the nearest it was measured on is {near.label}, with {seen})"
