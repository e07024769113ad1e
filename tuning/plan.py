"""The plan job: from measurements of a target on a device to a plan, stored where decoders look for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain

from optuna.exceptions import OptunaError
from sqlalchemy.exc import SQLAlchemyError

from ..db.rows import WHAT_IF
from ..db.sources import sources_of_inputs
from ..db.store import Store
from ..errors import MeasurementError, RequestError, StoreError
from ..planner.inputs import PlanInputs
from ..planner.memory.peak import memory_bytes
from ..planner.plans.document import plan_to_json
from ..planner.plans.plan import Plan
from ..planner.pricing.cells import Cell, cells_that_run
from ..planner.records.recording import ends_of
from ..planner.search.lossy_search import with_lossy_runs
from ..planner.search.search import solve
from ..planner.strategies.plain import PlainPolicy
from ..profiler.records.device import GIB
from ..profiler.snapshot import place_or_id
from .estimates.host_time import is_known
from .inputs import inputs_from_store
from .positions import STRETCH, require_within_positions
from .request import PlanRequest
from .spread import Spread, jobs_that_pay
from .steps import Guard, Progress, silent, unguarded
from .studies import StoredStudies


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """What solving may use (`jobs` None: as many as pay); the plan stays the same, but for trials that are reused."""

    jobs: int | None = None
    optuna_storage: str | None = None
    progress: Progress = silent


def make_plan(request: PlanRequest, store: Store, effort: SolveOptions | None = None) -> Plan:
    """Solve the plan from the store's records, store it, and return it.

    Raises:
        StoreError: a measurement or trace is missing; the message says how to make it.
        MeasurementError: no forward of the target could run.
        PlanError: the records do not fit together.
        RequestError: memory is limited, but the models' use of it is not known.
    """
    inputs = inputs_from_store(request, store)
    return solve_and_store(inputs, request, store, effort)


def solve_and_store(
    inputs: PlanInputs,
    request: PlanRequest,
    store: Store,
    effort: SolveOptions | None = None,
    guard: Guard = unguarded,
) -> Plan:
    """Solve, store and return the plan; the guard is entered with its document before it is stored."""
    plan = solve_plan(inputs, request, effort)
    with guard(plan_to_json(plan)):
        keep_plan(plan, inputs, store)
    return plan


def solve_plan(inputs: PlanInputs, request: PlanRequest, effort: SolveOptions | None = None) -> Plan:
    """Solve and return the plan; nothing is stored but trials, if `effort` names a storage for them.

    Raises:
        MeasurementError: no forward of the target could run.
        PlanError: the inputs do not hold what was requested.
        RequestError: memory is limited and its use not known, or too high even without a drafter; or a context is
            beyond the target's positions.
        StoreError: the storage of trials failed.
    """
    require_within_positions(inputs.target, request.contexts, STRETCH if inputs.knots else 1)
    used, cells = effort or SolveOptions(), _cells(inputs, request)
    inputs = replace(inputs, notes=(*inputs.notes, *_apart(inputs, request)))
    if not request.batches:
        inputs = replace(inputs, notes=(*inputs.notes, *_left_out(inputs)))
    if request.allow_lossy:
        inputs = with_lossy_runs(inputs, request.lossy, request.new_tokens)
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
    """Store a plan and return its number.

    Apart from its device's plans, if it rests on estimates: decoders use it only where no measured plan is at hand.
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


def _planned(inputs: PlanInputs) -> tuple[int, ...]:
    """Return the measured batch sizes to plan where none are requested; always the smallest.

    The recorded texts must fill them, and whole rounds must be timed: host times are not known of forwards alone.
    """
    measured, texts = inputs.verify.batches, len(inputs.texts)
    in_rounds = tuple(batch for batch in measured if batch in inputs.overhead.timed_batches) or measured
    return tuple(batch for batch in in_rounds if batch <= max(texts, in_rounds[0]))


def _left_out(inputs: PlanInputs) -> tuple[str, ...]:
    planned, texts = _planned(inputs), len(inputs.texts)
    return tuple(
        f"batch {batch} has no plan, because only {texts} texts were recorded; profile with more prompts"
        if batch in inputs.overhead.timed_batches
        else f"batch {batch} has no plan, because its rounds were not timed: its forwards were timed alone, or memory "
        f"had no room for rounds; run: spectune profile --batch {batch}"
        for batch in inputs.verify.batches
        if batch not in planned
    )


def _cells(inputs: PlanInputs, request: PlanRequest) -> tuple[Cell, ...]:
    """Return the cells to plan; an empty context, which imports may hold, becomes one of a single token.

    Batches that share no timed context use their own.
    """
    verify = inputs.verify
    verify.require_ran()
    batches = request.batches or _planned(inputs)
    contexts = request.contexts or _filled(_usual(inputs, batches))
    if contexts:
        cells = cells_that_run(verify, batches, contexts)
        _require_timed(inputs, [cell.batch for cell in cells])
        return cells
    own = (cells_that_run(verify, [batch], _filled(verify.full_contexts([batch]))) for batch in batches)
    return tuple(sorted(chain.from_iterable(own), key=lambda cell: (cell.context, cell.batch)))


def _require_timed(inputs: PlanInputs, batches: Sequence[int]) -> None:
    lacking = next((batch for batch in batches if batch not in inputs.verify.batches), None)
    if lacking is not None:
        known, asked = (",".join(map(str, sorted({*each}))) for each in (inputs.verify.batches, batches))
        raise MeasurementError(
            f"batch {lacking} was not timed of {inputs.target.name} on {inputs.device.label}, only {known}; run: "
            f"spectune profile --target {place_or_id(inputs.target.location)} --batch {asked}"
        )


def _usual(inputs: PlanInputs, batches: Sequence[int]) -> tuple[int, ...]:
    """Return the contexts to plan where none are requested: of computed surfaces the ends of the texts."""
    return tuple(sorted({*ends_of(inputs.texts)})) if inputs.knots else inputs.verify.full_contexts(batches)


def _filled(contexts: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(max(context, 1) for context in contexts))


def _apart(inputs: PlanInputs, request: PlanRequest) -> tuple[str, ...]:
    batches = request.batches or _planned(inputs)
    if request.contexts or inputs.verify.full_contexts(batches):
        return ()
    each = "; ".join(
        f"batch {batch} at {', '.join(map(str, inputs.verify.full_contexts([batch])))}" for batch in batches
    )
    return (
        f"batches were timed at no context in common ({each}), so each is planned at its own; profile them together",
    )


def _require_footprints(inputs: PlanInputs, request: PlanRequest) -> None:
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
    for cell in cells:
        alone = memory_bytes(cell, PlainPolicy(), None, inputs)
        if request.max_memory_bytes is not None and alone is not None and alone > request.max_memory_bytes:
            raise RequestError(
                f"plain decoding alone takes {alone / GIB:.3g} GiB at batch {cell.batch}, context {cell.context}, at "
                f"most {request.max_memory_bytes / GIB:.3g} GiB are allowed; plan smaller cells or raise --max-memory"
            )
