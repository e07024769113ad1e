"""A plan written for one engine: the best that it can run of the plan, and what that leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import PlanError
from ..planner.inputs import LOOKUP
from ..planner.plans.plan import Plan, PlanCell
from ..planner.search.restricted import Staged
from ..planner.strategies import TreePolicy
from ..planner.strategies.plain import PlainPolicy
from ..profiler.gguf_file import is_gguf
from .base import ExportEngine
from .rates import PLAIN, Rates, offers_of, plain_offer
from .regime import measured_in
from .schedule import EngineOffer, OfferSchedule, best_line, is_allowed, schedule_of
from .schema import recorded_version, require_known
from .setting import EngineConditions, EngineDrafter, Schedule, Setting

LLAMA_CPP = "llama.cpp"
GGUF = "{target} is a form of llama.cpp's, and {engine} may not read it; name the folder of the model with --target"

Basis = Literal["as planned", "re-solved", "alternatives"]
Drafters = Mapping[str, EngineDrafter]
Answers = Mapping[Staged, Setting | str]  # how an engine runs a policy, or why it cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A cell in which the engine deviates from the plan; drafters may be None, and speeds, of one source, unknown."""

    batch: int
    context: int
    wanted: str
    wanted_drafter: str | None
    gets: str
    gets_drafter: str | None
    reason: str
    wanted_tokens_per_s: float | None
    gets_tokens_per_s: float | None

    @property
    def loss(self) -> float | None:
        """The share of the planned speed that is lost; None where unknown."""
        if self.wanted_tokens_per_s is None or self.gets_tokens_per_s is None:
            return None
        return 1.0 - self.gets_tokens_per_s / self.wanted_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan written for one engine.

    Attributes:
        flags, files, command: see `Written`.
        basis: "re-solved": by the planner among all that the engine can run, on the plan's inputs; "alternatives": only
            among those listed in the plan's cells.
        kept: geometric mean over all cells of the engine's speed over the plan's, 1 without loss; None where some
            cell's is unknown.
    """

    engine: str
    version: str  # the recorded one against which the options were checked
    flags: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    command: str
    dropped: tuple[Dropped, ...]  # cells that get something else; empty where the engine runs all of the plan
    basis: Basis
    kept: float | None
    notes: tuple[str, ...]  # what a reader must know or do

    def __post_init__(self) -> None:
        if self.kept is not None and not (math.isfinite(self.kept) and self.kept > 0.0):
            raise PlanError(f"what an export keeps of a plan's speed is a positive share, got {self.kept}")
        if self.basis == "as planned" and self.dropped:
            raise PlanError(f"an export as planned drops nothing, got {len(self.dropped)} dropped cells")


def expressible(engine: ExportEngine, plan: Plan, drafters: Drafters, version: str) -> dict[Staged, Setting]:
    """Return all that an engine can run with a plan's drafters: its own grid and the plan's policies."""
    return _able(_answers(engine, plan, drafters, version))


def export_plan(
    plan: Plan, engine: ExportEngine, drafters: Drafters, *, target: str, version: str | None, rates: Rates
) -> Exported:
    """Return the plan as the engine can run it.

    A plan that was measured in the engine itself prices what the engine does, and its configuration says how it ran.
    `version` None means the newest recorded one; `rates` compare the engine's ways.

    Raises:
        RequestError: the version's options were not recorded.
        PlanError: the engine's schema does not allow the configuration.
    """
    recorded = recorded_version(engine.name, version)
    places = [(cell.batch, cell.context) for cell in plan.cells]
    answers = _answers(engine, plan, drafters, recorded, rates.known)
    settings = _able(answers)
    line = _planned(plan, settings) or best_line(plain_offer(rates, places), offers_of(settings, rates, places))
    written = engine.written(_schedule(line, plan, engine), target, recorded)
    require_known(engine.name, recorded, written.options)
    dropped = tuple(
        _dropped(cell, line.offers[cell.batch], _reason(cell, line, answers, _Known(plan, rates)), rates)
        for cell in plan.cells
        if not _is_carried(cell, line.offers[cell.batch], settings)
    )
    return Exported(
        engine=engine.name,
        version=recorded,
        flags=written.flags,
        files=written.files,
        command=written.command,
        dropped=dropped,
        basis=_basis(dropped, rates),
        kept=_kept(dropped, len(plan.cells)),
        notes=(*_notes(line, plan, engine, target), *written.notes, *(rates.notes if dropped else ())),
    )


def _answers(
    engine: ExportEngine, plan: Plan, drafters: Drafters, version: str, more: Iterable[Staged] = ()
) -> dict[Staged, Setting | str]:
    staged: dict[Staged, None] = {}
    for name in (LOOKUP, *drafters):
        for policy in engine.candidates(drafters.get(name), version):
            staged[policy, name] = None
    for cell in plan.cells:
        listed = [(cell.policy, cell.drafter), *((other.policy, other.drafter) for other in cell.alternatives)]
        staged |= dict.fromkeys(listed)
    staged |= dict.fromkeys(more)
    staged.pop(PLAIN, None)
    return {(policy, name): _answer(engine, plan, policy, drafters.get(name or ""), version) for policy, name in staged}


def _answer(
    engine: ExportEngine, plan: Plan, policy: TreePolicy, drafter: EngineDrafter | None, version: str
) -> Setting | str:
    """Return how an engine runs a policy at the plan's temperature, without deviation if the plan measured that."""
    if drafter is not None and drafter.refused:
        return drafter.refused
    found = engine.setting(policy, drafter, version)
    if plan.temperature and isinstance(found, Setting):
        found = engine.sampled(found, version)
    if isinstance(found, Setting) and not found.distance and _is_own(plan, engine):
        return replace(found, differs="")
    return found


def _able(answers: Answers) -> dict[Staged, Setting]:
    return {one: setting for one, setting in answers.items() if isinstance(setting, Setting)}


def _is_own(plan: Plan, engine: ExportEngine) -> bool:
    measured = measured_in(plan)
    return measured is not None and measured.engine == engine.name


def _planned(plan: Plan, settings: Mapping[Staged, Setting]) -> OfferSchedule | None:
    """Return the plan's own line without solving again; None where a server cannot follow it."""
    taken: dict[int, EngineOffer] = {}
    for cell in plan.cells:
        setting = settings.get((cell.policy, cell.drafter))
        is_plain = isinstance(cell.policy, PlainPolicy)
        offer = EngineOffer(policy=cell.policy, setting=setting, rates={})
        if (setting is None or setting.differs) and not is_plain:
            return None
        if taken.setdefault(cell.batch, offer) != offer:
            return None
    return OfferSchedule(offers=taken, score=0.0) if is_allowed(taken) else None


def _schedule(line: OfferSchedule, plan: Plan, engine: ExportEngine) -> Schedule:
    serving = EngineConditions(dtype=plan.dtype, threads=plan.device.threads) if _is_own(plan, engine) else None
    gpu = plan.device.name if plan.device.kind == "cuda" and serving is None else ""
    return replace(schedule_of(line), serving=serving, temperature=plan.temperature, dtype=plan.dtype, gpu=gpu)


def _drafter_of(offer: EngineOffer) -> str | None:
    if offer.setting is None:
        return None
    return LOOKUP if offer.setting.drafter is None else offer.setting.drafter.name


def _is_carried(cell: PlanCell, offer: EngineOffer, settings: Mapping[Staged, Setting]) -> bool:
    if offer.setting is None:
        return isinstance(cell.policy, PlainPolicy)
    wanted = settings.get((cell.policy, cell.drafter))
    return wanted is not None and wanted.told == offer.setting.told and not wanted.differs


@dataclass(frozen=True, slots=True)
class _Known:
    plan: Plan
    rates: Rates

    def contexts(self, batch: int) -> int:
        return len({cell.context for cell in self.plan.cells if cell.batch == batch})

    def better(self, cell: PlanCell, line: OfferSchedule, over: str) -> str:
        for each in self.plan.cells:
            place, offer = (each.batch, each.context), line.offers[each.batch]
            gets = offer.rates.get(place) or self.rates.in_engine((offer.policy, _drafter_of(offer))).get(place)
            wanted = self.rates.known.get((cell.policy, cell.drafter), {}).get(place)
            if gets is None or (wanted is None and not self.rates.is_complete):
                return f"was chosen; how fast both are is not known {over}"
        return f"is as good or better {over}"


def _reason(cell: PlanCell, line: OfferSchedule, answers: Answers, known: _Known) -> str:
    """Say why a cell does not get its policy."""
    if isinstance(cell.policy, PlainPolicy):
        return "the server drafts where it pays over all cells, and has no off here, or loses nothing by drafting"
    wanted, gets = answers[cell.policy, cell.drafter], line.offers[cell.batch].setting
    if isinstance(wanted, str):
        return wanted
    if wanted.most_batch is not None and cell.batch > wanted.most_batch:
        return f"it drafts up to batch {wanted.most_batch} only"
    if gets is not None and gets.told == wanted.told:
        return wanted.differs
    taken = line.setting
    if taken is None or taken.group != wanted.group:
        return f"a server drafts in one way, and another one {known.better(cell, line, 'over all cells')}"
    if not wanted.by_batch:
        return f"a server has one length for all batches, and another one {known.better(cell, line, 'over all cells')}"
    if known.contexts(cell.batch) > 1:
        over = "over its contexts"
        return f"lengths follow the batch and not the context, and this one {known.better(cell, line, over)}"
    if wanted.longest_first:
        over = "over all cells"
        return f"the smallest batch must have the longest length, and this one {known.better(cell, line, over)}"
    return f"lengths are chosen over all batches, and this one {known.better(cell, line, 'over all cells')}"


def _dropped(cell: PlanCell, offer: EngineOffer, reason: str, rates: Rates) -> Dropped:
    place, gets = (cell.batch, cell.context), (offer.policy, _drafter_of(offer))
    return Dropped(
        batch=cell.batch,
        context=cell.context,
        wanted=cell.policy.code,
        wanted_drafter=cell.drafter,
        gets=_label(offer.policy.code, offer.setting),
        gets_drafter=gets[1],
        reason=reason,
        wanted_tokens_per_s=rates.known.get((cell.policy, cell.drafter), {}).get(place),
        gets_tokens_per_s=offer.rates.get(place) or rates.in_engine(gets).get(place),
    )


def _label(code: str, setting: Setting | None) -> str:
    like = setting is not None and setting.differs
    return f"{setting.method}, priced as {code}" if like and setting is not None else code


def _basis(dropped: Sequence[Dropped], rates: Rates) -> Basis:
    if not dropped:
        return "as planned"
    return "re-solved" if rates.is_complete else "alternatives"


def _kept(dropped: Sequence[Dropped], cells: int) -> float | None:
    losses = [one.loss for one in dropped]
    if any(loss is None for loss in losses):
        return None
    return math.exp(sum(math.log1p(-loss) for loss in losses if loss is not None) / cells)


def _notes(line: OfferSchedule, plan: Plan, engine: ExportEngine, target: str) -> tuple[str, ...]:
    setting, measured = line.setting, measured_in(plan)
    differs = () if setting is None or not setting.differs else (setting.differs,)
    if is_gguf(target) and engine.name != LLAMA_CPP:
        differs = (GGUF.format(target=target, engine=engine.name), *differs)
    if measured is None or measured.engine == engine.name:
        return differs
    elsewhere = f"the plan was made for {measured.engine} and measured in it; in {engine.name} other ways may be faster"
    return (elsewhere, *differs)
