"""The export job: a plan and, where they are at hand, the measurements it was made from, as an engine's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..db.rows import ENGINE_PLAN, WHAT_IF
from ..db.store import Store
from ..engines.drafter import engine_drafters
from ..engines.export import Exported, export_plan, expressible
from ..engines.rates import PLAIN, Rates, rates_of_plan
from ..engines.regime import measured_in
from ..engines.schema import nearest_recorded, recorded_version
from ..engines.setting import EngineDrafter, Setting
from ..engines.table import ENGINES
from ..errors import MeasurementError, NoPlanError, PlanError, RequestError, SpectuneError
from ..planner.inputs import PlanInputs
from ..planner.plans.plan import Plan
from ..planner.plans.schedule import Place
from ..planner.pricing.cells import cells_at
from ..planner.reasons.verdict import warnings_of
from ..planner.search.restricted import Price, Staged, prices
from ..profiler.snapshot import snapshot_at
from .engines import sps
from .engines.export import rates_of_engine
from .engines.record import workload_in
from .inputs import inputs_from_store
from .request import PlanRequest

SGLANG = "sglang"  # reads costs of steps, too
GUESS = "plan {number} is a what-if: no measurements of its device stand behind it; name another with --plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What is to be exported, and where its models are now.

    `version` None is the measured engine version, else the newest recorded one; `target` None is where it was profiled.
    """

    engine: str
    version: str | None = None
    target: Path | None = None
    drafters: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise RequestError(f"no engine {self.engine!r} is known; use one of {', '.join(ENGINES)}")


def export(plan: Plan, request: ExportRequest, inputs: PlanInputs | None, why_not: str = "") -> Exported:
    """Return a plan as an engine's configuration.

    With inputs, solve for the best that the engine can express. Without, or where they lack the plan's cells, choose
    among what the plan lists; a note then says so, with `why_not`. RequestError where the engine's version was not
    recorded, a drafter is not the plan's, or the inputs are of others.
    """
    engine, drafters = ENGINES[request.engine], _drafters(plan, request)
    rates = _without(plan, why_not)
    if inputs is not None:
        _require_of_plan(plan, inputs)
        try:
            rates = _solved(plan, inputs, expressible(engine, plan, drafters, _version(plan, request)))
        except (PlanError, MeasurementError) as error:  # measured anew since, at other batches
            rates = _without(plan, str(error))
    found = _exported(plan, request, drafters, rates)
    if inputs is None or engine.name != SGLANG:
        return found
    return replace(
        found, files=(*found.files, (sps.FILE, sps.sps_table(inputs.verify))), notes=(*found.notes, sps.NOTE)
    )


def export_from_store(plan: Plan, request: ExportRequest, store: Store) -> Exported:
    """Return a plan as an engine's configuration, by the store's records of its measurements; errors as `export`.

    A plan measured in this engine uses the engine's own records. One measured in another engine is chosen among its own
    alternatives, because none was priced in this one.
    """
    measured = measured_in(plan)
    if measured is None:
        return export(plan, request, *inputs_of_plan(plan, store))
    drafters = _drafters(plan, request)
    if measured.engine != request.engine:
        return _exported(plan, request, drafters, _without(plan, f"it was measured in {measured.engine}"))
    as_listed = _exported(plan, request, drafters, _without(plan, ""))
    if not as_listed.dropped:
        return as_listed
    try:
        rates = rates_of_engine(plan, request.engine, store)
    except SpectuneError as error:
        rates = _without(plan, str(error))
    return _exported(plan, request, drafters, rates)


def newest_plan_for(engine: str, store: Store) -> int:
    """Return the number of the newest plan for an engine or our own decoder; a what-if only without others.

    NoPlanError where the store holds no plan; RequestError where it holds only retired plans and those for other
    engines.
    """
    rows = store.plans()
    if not rows:
        raise NoPlanError("any model", store.url)
    ours = workload_in(engine, "")
    fitting = [
        row
        for row in rows
        if row.state != "retired" and (not row.device.startswith(ENGINE_PLAN) or row.workload.endswith(ours))
    ]
    if not fitting:
        raise RequestError(
            f"all plans in {store.url} are retired or are for other engines than {engine}; name one with --plan, or "
            "make one for your target with: spectune plan"
        )
    last = max(fitting, key=lambda row: (not row.device.startswith(WHAT_IF), row.id))
    counts = store.find_plan(
        device=last.device, target=last.target, workload=last.workload, temperature=last.temperature
    )
    return counts.id


def notes_on(number: int, store: Store) -> tuple[str, ...]:
    """Return what a reader must know of a stored plan before it is deployed: that it is a what-if, where it is one."""
    is_guess = store.plan_row(number).device.startswith(WHAT_IF)
    return (GUESS.format(number=number),) if is_guess else ()


def inputs_of_plan(plan: Plan, store: Store) -> tuple[PlanInputs | None, str]:
    """Return what a store holds of a plan's inputs; else None and why not."""
    verify = next((one for one in plan.provenance.surfaces if one.role == "verify"), None)
    request = PlanRequest(
        target=plan.target,
        device=plan.device,
        dtype=plan.dtype,
        workload=plan.workload,
        temperature=plan.temperature,
        regime="" if verify is None else verify.regime,
    )
    try:
        found = inputs_from_store(request, store)
    except SpectuneError as error:
        return None, str(error)
    lacking = _lacking(plan, found)
    return (None, f"{store.url} holds no measurements of {', '.join(lacking)}") if lacking else (found, "")


def _exported(plan: Plan, request: ExportRequest, drafters: Mapping[str, EngineDrafter], rates: Rates) -> Exported:
    target = str(plan.target.location if request.target is None else place_of(request.target))
    found = export_plan(
        plan, ENGINES[request.engine], drafters, target=target, version=_version(plan, request), rates=rates
    )
    cached = _cached(found, [target, *(each.path for each in drafters.values())])
    return replace(found, notes=(*warnings_of(plan), *found.notes, *cached))


def _cached(found: Exported, places: Sequence[str]) -> Iterator[str]:
    written = "\n".join((found.command, *(text for _, text in found.files)))
    for place in places:
        if (snapshot := snapshot_at(place)) is not None and place in written:
            yield f"{place} is {snapshot.repo} of Hugging Face at revision {snapshot.commit}; elsewhere write its id"


def _drafters(plan: Plan, request: ExportRequest) -> dict[str, EngineDrafter]:
    stranger = next((name for name in request.drafters if name not in dict(plan.drafters)), None)
    if stranger is not None:
        names = ", ".join(name for name, _ in plan.drafters) or "none"
        raise RequestError(f"the plan has no drafter {stranger!r}, it has {names}; name one of these")
    places = {name: place_of(path) for name, path in request.drafters.items()}
    return engine_drafters(plan, places, request.target)


def place_of(path: Path) -> Path:
    """Return the absolute path of what lies here, since commands run elsewhere; what does not is named as it is."""
    return path.absolute() if path.exists() else path


def _version(plan: Plan, request: ExportRequest) -> str:
    measured = measured_in(plan)
    if request.version is None and measured is not None and measured.engine == request.engine:
        return nearest_recorded(request.engine, measured.version)
    return recorded_version(request.engine, request.version)


def _require_of_plan(plan: Plan, inputs: PlanInputs) -> None:
    measured = measured_in(plan)
    if measured is not None:
        raise RequestError(
            f"the plan was measured in {measured.engine}, and measurements of spectune's own decoder do not price it; "
            "leave --surface and --trace out"
        )
    if inputs.target.key != plan.target.key:
        raise RequestError(
            f"the measurements are of {inputs.target.name}, the plan is for {plan.target.name}; give its target's own"
        )
    if lacking := _lacking(plan, inputs):
        raise RequestError(f"there are no measurements of {', '.join(lacking)}; give those of all the plan's drafters")


def _lacking(plan: Plan, inputs: PlanInputs) -> list[str]:
    held = {(drafter.name, drafter.model.key) for drafter in inputs.drafters}
    return [name for name, model in plan.drafters if (name, model.key) not in held]


def _without(plan: Plan, why_not: str) -> Rates:
    told = rates_of_plan(plan)
    note = "chosen among the alternatives that the plan's cells list, not solved for anew"
    return Rates(known=told.known, is_complete=False, notes=(f"{note}: {why_not}" if why_not else note,))


def _solved(plan: Plan, inputs: PlanInputs, able: Mapping[Staged, Setting]) -> Rates:
    """Return prices of all that the engine can express and of the plan's own policies, on the plan's inputs.

    What the engine pads is priced twice, as our own decoder runs it and as the engine does: the plan may have it.
    """
    wanted = {(cell.batch, cell.context): (cell.policy, cell.drafter) for cell in plan.cells}
    cells = cells_at(wanted)
    staged = list(dict.fromkeys([PLAIN, *able, *wanted.values()]))
    found = prices(inputs, cells, staged, plan.bound, plan.new_tokens, cached_share=plan.cached_share)
    known = _speeds(found, wanted)
    filled = [one for one, setting in able.items() if setting.is_padded]
    filled_up = prices(
        inputs, cells, filled, plan.bound, plan.new_tokens, cached_share=plan.cached_share, is_padded=True
    )
    padded = _speeds(filled_up, {})
    if len(known[PLAIN]) < len(wanted):
        raise PlanError("plain decoding has no price in some cell of the plan; profile its batches and contexts")
    regime = inputs.verify.regime
    note = f"speeds are of the regime {regime!r} that was measured here"
    return Rates(known=known, is_complete=True, notes=(note,), padded=padded)


def _speeds(
    found: Mapping[Staged, Mapping[Place, Price]], wanted: Mapping[Place, Staged]
) -> dict[Staged, dict[Place, float]]:
    """Return the speeds of what keeps the bound; of plain decoding and of what is wanted in any case."""
    return {
        one: {
            place: price.tokens_per_s
            for place, price in by_place.items()
            if price.keeps_bound or one in (PLAIN, wanted.get(place))
        }
        for one, by_place in found.items()
    }
