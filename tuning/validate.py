"""The validate job: measure a stored plan against plain decoding, and keep what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from ..db.store import Store
from ..engines.regime import measured_in
from ..errors import PlanError, RequestError, StoreAwayError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan, PlanCell
from ..planner.plans.validation import Validation, ValidationRow, validation_to_json
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.lock import device_lock
from ..profiler.prompts import Prompt
from ..profiler.records.device import AUTO_DTYPE, Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import CAPTURED
from ..profiler.records.surface import LatencySurface
from ..profiler.remembered import cache_folder
from ..runtime.batch.faults import memory_for
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import StepConfig, always, plain_setup, setup_of
from ..runtime.load import require_recorded
from ..runtime.models.loading import load_tokenizer
from ..runtime.models.regime import decoding_regime
from .conversations import with_own_answers
from .family import load_family, torch_device
from .measuring.decoding import Family, decode_timed, names_of, room_for
from .measuring.race import EngineEntrant, race
from .measuring.speed_probe import ForwardProbe, SpeedProbe, draft_probes, gauged_sizes, pace_of
from .profiled_last import USUAL, workload_planned_last
from .prompt_room import why_shorter_at
from .prompts import requests_of, require_room, shown_to
from .request import Models, ProfileRequest
from .steps import Guard, Progress, unguarded

TURNS = 16  # of one race
DRAWN = 500  # moments, to tell in which cell rounds are
WARM_UP_TEXTS = 2  # per slot, decoded before anything is timed where shapes are captured as they come
REMEDY = "free some, or leave it out with --batch; what was measured before it is kept"
PLAIN_NAME, PLAN_NAME = "plain", "plan"
Report = Callable[[float], None]  # of a share that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """Which plan is to be measured, and on what."""

    target: Path
    prompts: Sequence[Prompt]
    device: str = "auto"
    plan: str | None = None  # a number of the store's, or a file; else the one that counts for what follows
    drafters: Mapping[str, Path] = field(default_factory=dict)  # where drafters lie now; else where they were profiled
    dtype: str | None = None  # the plan's
    workload: str | None = "default"  # of the plan; None: see `workload_planned_last`
    temperature: float = 0.0
    batches: tuple[int, ...] = ()  # empty: all of the plan's
    max_new_tokens: int = 128
    max_prompt_tokens: int | None = None  # see `prompt_room`
    rounds: int = 3  # interleaved repetitions, whose medians count
    seed: int = 0
    allow_lossy: bool = False  # whether lossy cells are measured as they are; they are refused else

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise RequestError(f"rounds must be at least 1, got {self.rounds}")

    def as_profile(self, batches: tuple[int, ...], dtype: str = AUTO_DTYPE) -> ProfileRequest:
        """Return the profile that decodes the same requests at some batch sizes, in the plan's number format."""
        return ProfileRequest(
            models=Models(target=self.target),
            prompts=self.prompts,
            workload=self.workload or USUAL,
            temperature=self.temperature,
            device=self.device,
            dtype=self.dtype or dtype,
            batches=batches,
            max_new_tokens=self.max_new_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            seed=self.seed,
        )


def validate_stored(
    request: ValidateRequest,
    store: Store,
    *,
    progress: Progress,
    told: Callable[[Plan, Iterable[Path], str], None] = lambda plan, models, dtype: None,
    guard: Guard = unguarded,
) -> Validation:
    """Measure a plan, and store the outcome beside it if it is a stored plan of this device.

    One cell per batch is measured, the nearest to the middle context of these requests' rounds; its prediction is moved
    to that context (`Plan.at_context`). Where a batch fails or is stopped, those before it are stored. `guard` is
    entered with the document of what is stored; `told` is called with the plan, the models that run and their number
    format.

    Raises:
        NoPlanError: the store holds no plan for this setup.
        PlanError: the named plan is for another target or engine.
        DeviceError: a profile or another validation holds the device.
        ModelError: a drafter is missing, has other weights than the plan's, or fails.
        NoRoomError: memory has no room for the decoders of a batch.
        RequestError: fewer prompts than a batch, no cell for a batch, an unknown drafter, or no such plan file.
    """
    device, target = detect(request.device), identify(request.target)
    plan, kept_beside = _planned(request, device, target, store)
    request = replace(request, workload=plan.workload, temperature=plan.temperature)
    batches = _batches(plan, request)
    profile = with_own_answers(request.as_profile(batches, plan.dtype), progress=progress)
    requests = requests_of(profile, load_tokenizer(str(request.target)))
    models, judging = _models(plan, request)
    dtype = request.dtype or plan.dtype
    told(plan, (models.target, *models.drafters.values()), dtype)
    regime = "eager" if judging else decoding_regime(plan.regime, device.kind)
    family = load_family(models, dtype=dtype, device=torch_device(device), classifiers=judging, regime=regime)
    requests = shown_to(family.target, requests)
    require_room(family.target.longest_context, requests, why_shorter_at(request.target))
    is_as_priced = (dtype, regime) == (plan.dtype, decoding_regime(plan.regime, device.kind))
    gauged = _draft_surfaces(plan, store) if is_as_priced else None
    rows: list[ValidationRow] = []
    try:
        with device_lock(device, cache_folder()):
            for done, batch in enumerate(batches):
                report = _part(partial(progress, f"measuring batch {batch}"), done, len(batches))
                rows.append(_validated(plan, batch, family, requests, request, report, gauged=gauged))
    finally:
        if rows and kept_beside is not None:
            document = validation_to_json(Validation(plan_id=kept_beside, rows=tuple(rows)))
            with guard(document):
                store.add_validation(kept_beside, document)
    return Validation(plan_id=kept_beside, rows=tuple(rows))


def _validated(
    plan: Plan,
    batch: int,
    family: Family,
    requests: Sequence[Request],
    request: ValidateRequest,
    report: Report,
    *,
    gauged: Mapping[str, LatencySurface] | None,
) -> ValidationRow:
    """Return what a batch's cell keeps of its promise, at the middle context of these requests' rounds."""
    report(0.0)
    context = _context_of(batch, requests)
    cell = plan.cell(batch, context)
    with memory_for(f"a race of batch {batch}", REMEDY):
        moved = plan.at_context(cell, context)
        row = _measured(moved, family, requests, request, report, gauged=gauged)
        return replace(row, context=cell.context, at_context=context)


def _models(plan: Plan, request: ValidateRequest) -> tuple[Models, dict[str, Path]]:
    """Return the target and the plan's drafters, and its classifiers by name where lossy cells are measured."""
    places = _places(plan, request)
    classifiers = plan.classifiers if request.allow_lossy else ()
    for name, recorded in plan.drafters:
        require_recorded(name, identify(places[name], name), recorded)
    for name, recorded in classifiers:
        require_recorded(name, identify(places[name], name), recorded, kind="classifier")
    models = Models(target=request.target, drafters={name: places[name] for name, _ in plan.drafters})
    return models, {name: places[name] for name, _ in classifiers}


def _draft_surfaces(plan: Plan, store: Store) -> dict[str, LatencySurface]:
    """Return what forwards of the plan's drafters take, by name: of whole models, as the store has them now.

    A service that is away has none: the pace is then gauged by the target alone.
    """
    names = {model.key: name for name, model in plan.drafters}
    sources = [source for source in plan.provenance.surfaces if source.role == "draft" and source.model in names]
    device, found = plan.device.fingerprint, dict[str, LatencySurface]()
    with suppress(StoreAwayError):
        for one in sources:
            for surface in store.surfaces(device, one.model, one.dtype, role=one.role, regime=one.regime):
                found[names[surface.model]] = surface
    return found


def _planned(request: ValidateRequest, device: Device, target: ModelIdentity, store: Store) -> tuple[Plan, int | None]:
    """Return the plan to measure, and the number to store it by: None for a file's or another device's plan."""
    if request.plan is None:
        workload = request.workload or workload_planned_last(target, device, request.temperature, store).last
        row = store.find_plan(
            device=device.fingerprint, target=target.key, workload=workload, temperature=request.temperature
        )
        return plan_from_json(store.plan(row.id)), row.id
    number = int(request.plan) if request.plan.isdecimal() else None
    plan = plan_from_json(_text(Path(request.plan)) if number is None else store.plan(number))
    if plan.target.key != target.key:
        raise PlanError(f"plan {request.plan} is for {plan.target.told_from(target)}")
    if (engine := measured_in(plan)) is not None:
        raise PlanError(f"plan {request.plan} is for {engine.engine}; validate it with --engine {engine.engine}")
    return plan, number if plan.device.fingerprint == device.fingerprint else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the plan {path} ({error}); write one with: spectune plan -o FILE") from error


def _places(plan: Plan, request: ValidateRequest) -> dict[str, Path]:
    recorded = {name: Path(model.location) for name, model in (*plan.drafters, *plan.classifiers)}
    if unknown := sorted(request.drafters.keys() - recorded):
        raise RequestError(
            f"the plan knows no drafter called {', '.join(unknown)}; it was made with {', '.join(recorded) or 'none'}"
        )
    return recorded | dict(request.drafters)


def _batches(plan: Plan, request: ValidateRequest) -> tuple[int, ...]:
    planned = tuple(sorted({cell.batch for cell in plan.cells}))
    if missing := [batch for batch in request.batches if batch not in planned]:
        raise RequestError(f"the plan has no cell for batch {missing[0]}, only for {list(planned)}; validate these")
    return request.batches or planned


def _context_of(batch: int, requests: Sequence[Request]) -> int:
    """Return the middle context of a batch's rounds: a decoder goes by its longest text."""
    drawn = np.random.default_rng(0)
    shape = (DRAWN, min(batch, len(requests)))
    which = drawn.permuted(np.tile(np.arange(len(requests)), (DRAWN, 1)), axis=1)[:, : shape[1]]
    prompts, lengths = np.array([(len(r.prompt), r.max_new_tokens) for r in requests]).T
    contexts = prompts[which] + drawn.random(shape) * lengths[which]
    return int(np.median(contexts.max(axis=1)))


def _measured(
    cell: PlanCell,
    family: Family,
    requests: Sequence[Request],
    request: ValidateRequest,
    report: Report,
    *,
    gauged: Mapping[str, LatencySurface] | None,
) -> ValidationRow:
    """Race a cell; the machine's pace is gauged by the plan's own forwards, and not where `gauged` is None."""
    if cell.is_lossy and not request.allow_lossy:
        raise RequestError(
            f"batch {cell.batch}, context {cell.context} of the plan is {cell.policy.label}, whose output is not the "
            "target's own; allow that with --allow-lossy, or plan without"
        )
    raced = [
        _raced(
            cell,
            family,
            requests,
            _part(report, repeat, request.rounds),
            seed=request.seed + repeat,
            gauged=gauged,
        )
        for repeat in range(request.rounds)
    ]
    paces = [each.pace for each in raced if each.pace is not None]
    promised = cell.prediction
    return ValidationRow(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.code,
        drafter=cell.drafter,
        predicted_tokens_per_s=promised.tokens_per_s,
        interval=(promised.low, promised.high),
        measured_tokens_per_s=median(each.planned_tokens_per_s for each in raced),
        plain_tokens_per_s=median(each.plain_tokens_per_s for each in raced),
        machine_speed=median(paces) if paces else None,
        predicted_tokens_per_round=promised.tokens_per_round,
        tokens_per_round=median(each.tokens_per_round for each in raced),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raced:
    plain_tokens_per_s: float
    planned_tokens_per_s: float
    tokens_per_round: float  # of the plan's
    pace: float | None  # of the machine, None where it was not gauged


def _part(report: Report, done: int, of: int) -> Report:
    """Return what reports the share of one part, `done` of `of` parts being done."""
    return lambda share: report((done + share) / of)


def _raced(
    cell: PlanCell,
    family: Family,
    requests: Sequence[Request],
    report: Report,
    *,
    seed: int,
    gauged: Mapping[str, LatencySurface] | None,
) -> _Raced:
    """Race a cell once; its decoders end with it, before others are made."""
    plain = entrant(PLAIN_NAME, plain_setup(cell), family, requests, cell.batch)
    planned = entrant(PLAN_NAME, setup_of(cell), family, requests, cell.batch)
    gauges = list[tuple[ForwardProbe, float]]()
    if gauged is not None:
        gauges += [(SpeedProbe(cell, family.target, nodes), share) for nodes, share in gauged_sizes(cell).items()]
        gauges += draft_probes(cell, family.drafters, gauged)
    race([plain, planned, *(gauge for gauge, _ in gauges)], turns=TURNS, seed=seed, told=report)
    return _Raced(
        plain_tokens_per_s=plain.tokens_per_s,
        planned_tokens_per_s=planned.tokens_per_s,
        tokens_per_round=planned.run.tokens_per_round,
        pace=pace_of(gauges) if gauges else None,
    )


def entrant(name: str, setup: StepConfig, family: Family, requests: Sequence[Request], batch: int) -> EngineEntrant:
    """Return a fresh decoder that runs every round by one setup, ready to race: what it captures is captured."""
    room = room_for(requests, [setup], batch)
    names = names_of(setup)
    decoder = family.decoder(always(setup), names=names, batch=batch, capacity=room, allow_lossy=setup.is_lossy)
    if family.target.regime == CAPTURED:
        decode_timed(decoder, requests[: WARM_UP_TEXTS * batch], batch)
    return EngineEntrant(name, decoder, requests, batch)
