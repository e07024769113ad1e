"""What a plan is computed from: a fresh profile, or the newest measurements and traces that a store holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..db.store import Store
from ..errors import StoreError
from ..planner.inputs import TARGET, DrafterInputs, PlanInputs, with_weights
from ..planner.replay.recorded import texts_of
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.match import match_devices, nearest
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import CAPTURED, DRAFT_ROLES, RESUME, SELF
from ..profiler.records.surface import LatencySurface
from .estimates.architectures import footprints_of
from .request import PlanRequest

if TYPE_CHECKING:  # a plan from files loads no model, and no library that does
    from .profile import Profile

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
        overhead=profile.overhead,
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
    )


def inputs_from_store(request: PlanRequest, store: Store) -> PlanInputs:
    """Return the newest measurements and traces of a setup; drafters recorded along other texts are left out and named.

    Raises:
        StoreError: something is missing.
    """
    traces = store.traces(request.target.key, request.workload, request.temperature)
    overhead = store.overhead(request.device.fingerprint, request.target.key, request.dtype)
    verify = _surface(store, request, request.target, "verify")
    if overhead is None or not traces:
        what = "host time per round" if overhead is None else f"trace of the workload {request.workload!r}"
        raise missing(what, request, store)
    together, notes = recorded_together(traces)
    drafters = []
    for trace in with_weights(together):
        model = recorded_model(trace, request, store)
        surface = _surface(store, request, model, _draft_role(store, request, model))
        resume = _resume(store, request, surface, verify.batches)
        drafters.append(
            DrafterInputs(name=trace.drafter_name, model=model, surface=surface, trace=trace, resume=resume)
        )
    return PlanInputs(
        device=request.device,
        target=request.target,
        dtype=request.dtype,
        verify=verify,
        overhead=overhead,
        drafters=tuple(drafters),
        texts=texts_of(together[-1]),
        workload=request.workload,
        temperature=together[-1].temperature,
        pairwise=agreement(with_weights(together), request, store),
        footprints=footprints_of(request.target, (drafter.model for drafter in drafters), request.dtype),
        notes=notes,
    )


def recorded_together(traces: Sequence[AcceptanceTrace]) -> tuple[list[AcceptanceTrace], tuple[str, ...]]:
    """Return the traces recorded along the same texts as the last one, and a note on each of the others."""
    texts = texts_of(traces[-1])
    together = [trace for trace in traces if texts_of(trace) == texts]
    notes = (
        f"{trace.drafter_name} was recorded along other texts than {traces[-1].drafter_name} and does not compete; "
        "profile all drafters together"
        for trace in with_weights(traces)
        if trace not in together
    )
    return together, tuple(notes)


def recorded_model(trace: AcceptanceTrace, request: PlanRequest, store: Store) -> ModelIdentity:
    """Return who a trace's drafter is.

    Raises:
        StoreError: the store does not know it.
    """
    model = store.find_model(trace.drafter)
    if model is None:
        raise missing(f"model {trace.drafter_name}", request, store)
    return model


def agreement(traces: Sequence[AcceptanceTrace], request: PlanRequest, store: Store) -> PairwiseAcceptance | None:
    """Return how the target and these drafters agree along the request's texts; None where the store does not say."""
    if not traces:
        return None
    found = store.pairwise([TARGET, *(trace.drafter_name for trace in traces)])
    if found is None or (found.target, found.workload) != (request.target.key, request.workload):
        return None
    return found if found.temperature == traces[0].temperature else None


def missing(what: str, request: PlanRequest, store: Store) -> StoreError:
    """Return the error that something is not in the store, and how it gets there."""
    return StoreError(
        f"the store holds no {what} for {request.target.name} on {request.device.label}{_nearest(request, store)}; "
        f"run: spectune profile --target {request.target.location} --drafter NAME=PATH"
    )


def _surface(store: Store, request: PlanRequest, model: ModelIdentity, role: str) -> LatencySurface:
    """Return the measured surface of one regime; estimates and imports are never taken for measurements."""
    found = store.surfaces(request.device.fingerprint, model.key, request.dtype, role=role)
    wanted = [s for s in found if s.origin == "measured" and (not request.regime or s.regime == request.regime)]
    if not wanted:
        raise missing(f"{role} surface of {model.name} in {request.dtype}", request, store)
    runtime = [surface for surface in wanted if surface.regime in RUNTIME_REGIMES]
    return (runtime or wanted)[-1]


def _resume(store: Store, request: PlanRequest, own: LatencySurface, batches: Sequence[int]) -> LatencySurface | None:
    """Return what verifying from an exit's states costs, where it was timed as the exit was.

    Of several the one that knows most of these batches, and of those the last; none that knows no batch of them.
    """
    if own.role != SELF:
        return None
    found = store.surfaces(request.device.fingerprint, own.model, request.dtype, role=RESUME)
    alike = [surface for surface in found if surface.regime == own.regime and {*batches} & {*surface.batches}]
    return max(reversed(alike), key=lambda surface: len({*batches} & {*surface.batches}), default=None)


def _draft_role(store: Store, request: PlanRequest, model: ModelIdentity) -> str:
    """Return in which role a drafter was timed: heads and block drafters have their own."""
    known = (request.device.fingerprint, model.key, request.dtype)
    return next((role for role in DRAFT_ROLES if store.surfaces(*known, role=role)), DRAFT_ROLES[0])


def _nearest(request: PlanRequest, store: Store) -> str:
    """Say which measured device comes nearest, and how it differs."""
    measured = {surface.device for surface in store.surfaces(model=request.target.key)}
    others = [d for d in store.devices() if d.fingerprint in measured and d.fingerprint != request.device.fingerprint]
    near = nearest(request.device, others)
    if near is None:
        return ""
    seen = ", ".join(str(each) for each in match_devices(request.device, near).differences)
    return f" (the nearest it was measured on is {near.label}, with {seen})"
