"""What a plan is computed from: a fresh profile, or the newest measurements and traces that a store holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..db.store import Store
from ..errors import StoreError
from ..planner.inputs import TARGET, DrafterInputs, PlanInputs, with_weights
from ..planner.records.recording import texts_of
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.match import match_devices, nearest
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead, joined
from ..profiler.records.role import CAPTURED, DRAFT_ROLES, EAGER, READ, RESUME, SELF, run_alike, run_beside, running_of
from ..profiler.records.surface import LatencySurface
from ..profiler.snapshot import place_or_id
from .host_notes import note_of_drafters, note_of_rounds
from .paces import paces_of
from .parts import footprints_of
from .positions import note_of_reach
from .request import PlanRequest
from .timed import DeviceSurfaces, timed_on

if TYPE_CHECKING:  # a plan from files loads no model, and no library that does
    from ..db.rows import SurfaceRow
    from .profile import Profile

SAME_TEMPERATURE = 1e-9
COMPUTED = ("estimated", "bound")  # origins of surfaces that nobody measured
RUNTIME_REGIMES = ("eager", "eager-transformers", CAPTURED)  # how the decoder runs; preferred over others


def inputs_of(profile: Profile) -> PlanInputs:
    """Return what a fresh profile measured as the planner's inputs; its first workload where it recorded several."""
    models, first = profile.identities, profile.traces[0]
    traces = {trace.drafter_name: trace for trace in profile.traces[: len(models.drafters)]}
    return PlanInputs(
        device=profile.device,
        target=models.target,
        dtype=profile.verify.dtype,
        verify=profile.verify,
        overhead=profile.overhead.at_temperature(first.temperature),
        drafters=tuple(
            DrafterInputs(
                name=name,
                model=model,
                surface=profile.drafts[name],
                trace=traces[name],
                resume=profile.resumes.get(name),
            )
            for name, model in models.drafters.items()
        ),
        texts=texts_of(first),
        workload=first.workload,
        temperature=first.temperature,
        pairwise=profile.pairwise[0] if profile.pairwise else None,
        footprints=footprints_of(models.target, models.drafters.values(), profile.verify.dtype),
        readings=readings_of(profile.readings),
        host_times=(profile.overhead,),
    )


def inputs_from_store(request: PlanRequest, store: Store) -> PlanInputs:
    """Return the newest measurements and traces of a setup, all of one regime.

    The regime is the request's, else that of the target's last profile. Left out with a note: drafters recorded along
    other texts, not timed in this regime, or whose name a newer drafter took. StoreError: something is missing; of
    drafters, all that could compete.
    """
    timed = timed_on(request.device.fingerprint, store)
    verify, times = _target(request, timed)
    overhead = joined(times)
    asked = overhead.at_temperature(request.temperature)
    traces = store.traces(request.target.key, request.workload, request.temperature)
    if not traces:
        raise missing(named_trace(request), request, store)
    together, notes = recorded_together(traces)
    drafters, others = _drafters(with_weights(together), verify, request, timed)
    return PlanInputs(
        device=request.device,
        target=request.target,
        dtype=request.dtype,
        verify=verify,
        overhead=asked,
        host_times=tuple(each for each in times if not {*each.samples}.isdisjoint(asked.samples)),
        drafters=tuple(drafters),
        texts=texts_of(together[-1]),
        workload=request.workload,
        temperature=together[-1].temperature,
        pairwise=agreement(together, [drafter.trace for drafter in drafters], request, store),
        footprints=footprints_of(request.target, (drafter.model for drafter in drafters), request.dtype),
        paces=paces_of(store, request.device.fingerprint, request.target.key),
        readings=readings_of(_readings([request.target, *(drafter.model for drafter in drafters)], verify, timed)),
        notes=(
            *notes,
            *others,
            *note_of_rounds(overhead, request.temperature),
            *note_of_drafters(drafters, asked),
            *note_of_reach(request.target, drafters),
        ),
    )


def recorded_together(traces: Sequence[AcceptanceTrace]) -> tuple[list[AcceptanceTrace], tuple[str, ...]]:
    """Return the traces along the last one's texts, the newest of each name, and a note on each of the others."""
    newest = {trace.drafter_name: trace.drafter for trace in traces}
    current = [trace for trace in traces if trace.drafter == newest[trace.drafter_name]]
    replaced = [
        f"an older {trace.drafter_name} (weights {trace.drafter}) does not compete, because a newer one has its name; "
        "profile it under another name to keep both"
        for trace in traces
        if trace.drafter != newest[trace.drafter_name]
    ]
    texts = texts_of(traces[-1])
    elsewhere = [
        f"{trace.drafter_name} was recorded along other texts than {traces[-1].drafter_name} and does not compete; "
        "profile all drafters together"
        for trace in with_weights(current)
        if texts_of(trace) != texts
    ]
    return [trace for trace in current if texts_of(trace) == texts], (*replaced, *elsewhere)


def recorded_model(trace: AcceptanceTrace, request: PlanRequest, store: Store) -> ModelIdentity:
    """Return the identity of a trace's drafter; raise StoreError where the store does not know it."""
    model = store.find_model(trace.drafter)
    if model is None:
        raise missing(f"model {trace.drafter_name}", request, store)
    return model


def agreement(
    together: Sequence[AcceptanceTrace],
    competing: Sequence[AcceptanceTrace],
    request: PlanRequest,
    store: Store,
) -> PairwiseAcceptance | None:
    """Return how target and drafters agree along the request's texts; None where the store does not say.

    The record is of all models of a profile: those of `together`, or of those in question, `competing`.
    """
    for traces in (with_weights(together), competing) if competing else ():
        names = [TARGET, *(trace.drafter_name for trace in traces)]
        found = store.pairwise(
            names, target=request.target.key, workload=request.workload, temperature=competing[0].temperature
        )
        if found is not None:
            return found
    return None


def readings_of(surfaces: Iterable[LatencySurface]) -> dict[str, LatencySurface]:
    """Return what reading prompts takes by ModelIdentity.key, of those that read any."""
    return {surface.model: surface for surface in surfaces if surface.role == READ and surface.batches}


def named_trace(request: PlanRequest) -> str:
    """Return what traces a request is about."""
    return f"trace of the workload {request.workload!r} at temperature {request.temperature:g}"


def missing(what: str, request: PlanRequest, store: Store) -> StoreError:
    """Return the error that something is not in the store, and how it gets there."""
    asked = {
        "dtype": (request.dtype, request.device.native_dtype),
        "workload": (request.workload, "default"),
        "temperature": (f"{request.temperature:g}", "0"),
        "regime": (request.regime, ""),
    }
    options = "".join(f" --{name} {shlex.quote(own)}" for name, (own, usual) in asked.items() if own != usual)
    return StoreError(
        f"the store holds no {what} for {request.target.name} on {request.device.label}{_nearest(request, store)}; "
        f"run: spectune profile --target {place_or_id(request.target.location)} [--drafter NAME=PATH]{options}"
    )


def _target(request: PlanRequest, timed: DeviceSurfaces) -> tuple[LatencySurface, list[RoundOverhead]]:
    """Return the target's newest verify surface with whole rounds in a wanted regime, and their times, newest first."""
    rows = timed.of(request.target.key, "verify", request.dtype)
    if request.regime:
        exact = [row for row in rows if row.regime == request.regime]
        rows = exact or [row for row in rows if running_of(row.regime) == request.regime]
    if not rows:
        wanted = f" in the regime {request.regime}" if request.regime else ""
        raise missing(f"verify surface of {request.target.name} in {request.dtype}{wanted}", request, timed.store)
    for row in runnable(rows):
        if times := timed.store.host_times(row.device, row.model, row.dtype, row.regime):
            return timed.surface(row), times
    raise missing("host time per round", request, timed.store)


def _drafters(
    traces: Sequence[AcceptanceTrace], verify: LatencySurface, request: PlanRequest, timed: DeviceSurfaces
) -> tuple[list[DrafterInputs], list[str]]:
    """Return the drafters timed in the target's regime, and a note on each of the others.

    StoreError where a model is not known, or no drafter is left and one was not timed at all.
    """
    found, notes, untimed = [], [], []
    for trace in traces:
        model = recorded_model(trace, request, timed.store)
        rows = [row for role in DRAFT_ROLES for row in timed.of(model.key, role, request.dtype)]
        alike = [row for row in rows if run_beside(row.regime, row.role, verify.regime)]
        if alike:
            surface = timed.surface(runnable(alike)[0])
            resume = _resume(surface, verify.batches, timed)
            found.append(
                DrafterInputs(name=trace.drafter_name, model=model, surface=surface, trace=trace, resume=resume)
            )
        elif rows:
            notes.append(_timed_otherwise(trace.drafter_name, running_of(rows[0].regime), verify.regime))
        else:
            untimed.append(model.name)
            notes.append(_not_timed(trace.drafter_name, request.dtype))
    if untimed and not found:
        raise missing(f"{DRAFT_ROLES[0]} surface of {untimed[0]} in {request.dtype}", request, timed.store)
    return found, notes


def _timed_otherwise(name: str, regime: str, wanted: str) -> str:
    return (
        f"{name} was timed in the regime {regime}, the target in {wanted}, and does not compete; profile all drafters "
        f"together, or run: spectune plan --regime {regime}"
    )


def _not_timed(name: str, dtype: str) -> str:
    return f"{name} was not timed on this device in {dtype} and does not compete; profile all drafters together"


def runnable(rows: list[SurfaceRow]) -> list[SurfaceRow]:
    """Return the surfaces in regimes of our decoder, where there are any."""
    return [row for row in rows if row.regime in RUNTIME_REGIMES] or rows


def _resume(own: LatencySurface, batches: Sequence[int], timed: DeviceSurfaces) -> LatencySurface | None:
    """Return the cost of verifying from an exit's states; None where no surface knows a batch of these.

    Of several surfaces, the one that knows most of these batches wins, then the newest.
    """
    if own.role != SELF:
        return None
    rows = [row for row in timed.of(own.model, RESUME, own.dtype) if row.regime == own.regime]
    alike = [surface for surface in map(timed.surface, rows) if {*batches} & {*surface.batches}]
    return max(alike, key=lambda surface: len({*batches} & {*surface.batches}), default=None)


def _readings(models: Sequence[ModelIdentity], verify: LatencySurface, timed: DeviceSurfaces) -> list[LatencySurface]:
    found = []
    for model in models:
        rows = timed.of(model.key, READ, verify.dtype)
        alike = [row for row in rows if run_alike(row.regime, verify.regime)]
        if running_of(verify.regime) == CAPTURED:  # prompts are read as they come there, too
            alike = alike or [row for row in rows if running_of(row.regime) == EAGER]
        found += [timed.surface(row) for row in alike[:1]]
    return found


def _nearest(request: PlanRequest, store: Store) -> str:
    known = store.surfaces(model=request.target.key)
    if known and all(surface.origin in COMPUTED for surface in known):
        return " (it was estimated only, and nothing of it was measured)"
    measured = {surface.device for surface in known if surface.origin not in COMPUTED}
    others = [d for d in store.devices() if d.fingerprint in measured and d.fingerprint != request.device.fingerprint]
    near = nearest(request.device, others)
    if near is None:
        return ""
    seen = match_devices(request.device, near).in_brief
    return f" (the nearest it was measured on is {near.label}, with {seen}; spectune -v doctor compares them)"
