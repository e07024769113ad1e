"""The plan job: from what was measured about a target on a device to a plan, kept where decoders look for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from optuna.exceptions import OptunaError
from sqlalchemy.exc import SQLAlchemyError

from ..db.plans import WHAT_IF
from ..db.sources import sources_of_inputs
from ..db.store import Store
from ..errors import RequestError, StoreError
from ..planner.inputs import TARGET, DrafterInputs, PlanInputs, with_weights
from ..planner.lossy.run import LossyRun
from ..planner.lossy.search import with_lossy_runs
from ..planner.memory.peak import memory_bytes
from ..planner.plans.plan import Plan, plan_to_json
from ..planner.policies import PlainPolicy
from ..planner.pricing.cost import Cell, cells_of
from ..planner.replay.recorded import texts_of
from ..planner.search.objective import LatencyBound
from ..planner.search.options import SearchOptions
from ..planner.search.search import solve
from ..planner.text.frozen import FrozenTable
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import AUTO_DTYPE, GIB, Device
from ..profiler.records.match import match_devices, nearest
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import CAPTURED, DRAFT_ROLES, RESUME, SELF
from ..profiler.records.surface import LatencySurface
from .estimates.architectures import footprints_of
from .estimates.host_time import is_known
from .spread import Spread, jobs_that_pay
from .steps import Progress, silent
from .studies import StoredStudies

if TYPE_CHECKING:  # a plan from files loads no model, and no library that does
    from .profile import Profile

RUNTIME_REGIMES = ("eager", "eager-transformers", CAPTURED)  # how the decoder runs; preferred over others


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which plan is wanted; empty batches or contexts mean all that were measured."""

    target: ModelIdentity
    device: Device
    dtype: str = AUTO_DTYPE  # the device's native one, which is what the field then holds
    workload: str = "default"
    temperature: float = 0.0
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    regime: str = ""  # of the surfaces; the target's newest measured one where empty
    seed: int = 0
    trials: int = SearchOptions().trials
    bound: LatencyBound | None = None
    max_memory_bytes: int | None = None
    allow_lossy: bool = False
    max_quality_loss: float | None = None  # see `SearchOptions`
    lossy: tuple[LossyRun, ...] = ()  # runs of lossy ways; nothing else lossy competes
    tables: tuple[FrozenTable, ...] = ()  # that Cacheback may draft from beside the text's own

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.device.dtype_for(self.dtype))
        if self.lossy and not self.allow_lossy:
            raise RequestError("lossy runs were given, and lossy decoding was not allowed; pass --allow-lossy too")

    @property
    def options(self) -> SearchOptions:
        """How the plan is searched for."""
        return SearchOptions(
            seed=self.seed,
            trials=self.trials,
            bound=self.bound,
            max_memory_bytes=self.max_memory_bytes,
            allow_lossy=self.allow_lossy,
            max_quality_loss=self.max_quality_loss,
            tables=self.tables,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What solving may use; none of it changes the plan, except that trials of an earlier search are taken up.

    Attributes:
        jobs: processes; None for as many as pay.
        optuna_storage: where trials are kept, see `StoredStudies`; None is memory.
        progress: told whenever a part is done.
    """

    jobs: int | None = None
    optuna_storage: str | None = None
    progress: Progress = silent


def make_plan(request: PlanRequest, store: Store, effort: Effort | None = None) -> Plan:
    """Solve the plan from what the store holds, keep it there, and return it.

    Raises:
        StoreError: a measurement or trace is missing; the message says how to make it.
        PlanError: the store's records do not fit together.
        RequestError: memory is limited, but how much the models take is not known.
    """
    inputs = inputs_from_store(request, store)
    return solve_and_store(inputs, request, store, effort)


def solve_and_store(inputs: PlanInputs, request: PlanRequest, store: Store, effort: Effort | None = None) -> Plan:
    """Solve, keep the plan in the store, and return it."""
    plan = solve_plan(inputs, request, effort)
    keep_plan(plan, inputs, store)
    return plan


def solve_plan(inputs: PlanInputs, request: PlanRequest, effort: Effort | None = None) -> Plan:
    """Solve and return the plan; nothing is kept but trials, where a storage of them is named.

    Args:
        inputs: what it is computed from.
        request: batches, contexts and limits; who it is for is the inputs' business.
        effort: what solving may use.

    Raises:
        PlanError: the inputs do not hold what is asked for.
        RequestError: memory is limited, but how much the models take is not known, or too much without any drafter.
        StoreError: the storage of trials failed.
    """
    used, cells = effort or Effort(), _cells(inputs, request)
    if request.allow_lossy:
        inputs = with_lossy_runs(inputs, request.lossy)
    _require_footprints(inputs, request)
    _require_room(inputs, request, cells)
    jobs = used.jobs or jobs_that_pay(len(cells), sum(drafter.trace.positions for drafter in inputs.drafters))
    try:
        return solve(
            inputs,
            cells,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            spectune=version("spectune"),
            options=request.options,
            studies=StoredStudies(storage_url=used.optuna_storage, seed=request.seed),
            spread=Spread(jobs=jobs, progress=used.progress),
            parts=jobs,
        )
    except (OptunaError, SQLAlchemyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise StoreError(f"the storage of trials failed ({reason}); try again, or without --optuna-storage") from error


def keep_plan(plan: Plan, inputs: PlanInputs, store: Store) -> int:
    """Keep a plan in the store and return its number.

    A plan that rests on anything but measurements, of forwards and of host time, is filed apart from its device's own
    plans: a decoder takes it for the guess it is, and only where no measured plan is at hand.
    """
    surfaces = (inputs.verify, *(surface for drafter in inputs.drafters for surface in drafter.surfaces))
    is_measured = all(surface.origin == "measured" for surface in surfaces) and is_known(inputs.overhead)
    prefix = "" if is_measured else WHAT_IF
    return store.add_plan(
        plan_to_json(plan),
        device=f"{prefix}{plan.device.fingerprint}",
        device_kind=f"{prefix}{plan.device.kind_key}",
        target=plan.target.key,
        workload=plan.workload,
        temperature=plan.temperature,
        sources=sources_of_inputs(inputs),
    )


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


def _served(batches: Sequence[int], texts: int) -> tuple[int, ...]:
    """Return the measured batch sizes that the recorded texts fill; the smallest in any case."""
    return tuple(batch for batch in batches if batch <= max(texts, min(batches)))


def _cells(inputs: PlanInputs, request: PlanRequest) -> tuple[Cell, ...]:
    verify = inputs.verify
    batches = request.batches or _served(verify.batches, len(inputs.texts))
    contexts = request.contexts or verify.full_contexts
    return cells_of(batches, contexts)


def _require_footprints(inputs: PlanInputs, request: PlanRequest) -> None:
    """Raise RequestError where memory is limited and not known."""
    if request.max_memory_bytes is None:
        return
    for model in (inputs.target, *(drafter.model for drafter in inputs.drafters)):
        if model.key not in inputs.footprints:
            raise RequestError(
                f"how much memory {model.name} takes is not known, because its files are not at "
                f"{model.location or 'a known place'} as they were, or are of a kind that is not counted; put them "
                "there, leave the drafter out, or leave out --max-memory"
            )


def _require_room(inputs: PlanInputs, request: PlanRequest, cells: Sequence[Cell]) -> None:
    """Raise RequestError where not even the target alone keeps to the limit on memory."""
    for cell in cells:
        alone = memory_bytes(cell, PlainPolicy(), None, inputs)
        if request.max_memory_bytes is not None and alone is not None and alone > request.max_memory_bytes:
            raise RequestError(
                f"plain decoding alone takes {alone / GIB:.3g} GiB at batch {cell.batch}, context {cell.context}, at "
                f"most {request.max_memory_bytes / GIB:.3g} GiB are allowed; plan smaller cells or raise --max-memory"
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
