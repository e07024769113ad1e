"""A plan written for one engine: the best that the engine can carry of it, and what that leaves out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...planner.inputs import LOOKUP
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.schedule import Place
from ...planner.policies import PlainPolicy, TreePolicy
from ...planner.search.restricted import Staged
from .engine import Engine
from .exported import Basis, Dropped, Exported
from .schedule import Line, Offer, best_line, is_allowed, schedule_of
from .schema import recorded_version, require_known
from .setting import EngineDrafter, Setting

Drafters = Mapping[str, EngineDrafter]
PLAIN: Staged = (PlainPolicy(), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of policies by cell, all by one reckoning.

    Attributes:
        known: by policy and drafter, then by cell. Plain decoding and every cell's own policy are among them.
        is_complete: whether a cell without an entry means that the policy cannot be used there; else it is not known.
        notes: what a reader must know of them.
    """

    known: Mapping[Staged, Mapping[Place, float]]
    is_complete: bool
    notes: tuple[str, ...] = ()

    def of(self, one: Staged, places: Sequence[Place]) -> dict[Place, float | None]:
        """Return a policy's rates by cell, None where one is not known."""
        known = self.known.get(one, {})
        return {place: known.get(place) for place in places if place in known or not self.is_complete}


def rates_of_plan(plan: Plan) -> Rates:
    """Return what a plan itself tells: of each cell its own policy, plain decoding and its alternatives.

    What was taken off a cell's promise for optimism is put back, so that it compares with the others.
    """
    known: dict[Staged, dict[Place, float]] = {}
    for cell in plan.cells:
        place = (cell.batch, cell.context)
        known.setdefault(PLAIN, {})[place] = cell.plain.tokens_per_s
        for other in cell.alternatives:
            known.setdefault((other.policy, other.drafter), {})[place] = other.tokens_per_s
        own = cell.prediction.tokens_per_s / (1.0 - cell.prediction.errors.optimism)
        known.setdefault((cell.policy, cell.drafter), {})[place] = own
    return Rates(known=known, is_complete=False)


def expressible(engine: Engine, plan: Plan, drafters: Drafters, version: str) -> dict[Staged, Setting]:
    """Return all that an engine can run with a plan's drafters: its own grid, and what the plan lists."""
    staged: dict[Staged, None] = {}
    for name in (LOOKUP, *drafters):
        for policy in engine.candidates(drafters.get(name), version):
            staged[policy, name] = None
    for cell in plan.cells:
        listed = [(cell.policy, cell.drafter), *((other.policy, other.drafter) for other in cell.alternatives)]
        staged |= dict.fromkeys(listed)
    staged.pop(PLAIN, None)
    found = {one: _setting(engine, one, drafters, version) for one in staged}
    return {one: setting for one, setting in found.items() if isinstance(setting, Setting)}


def export_plan(
    plan: Plan, engine: Engine, drafters: Drafters, *, target: str, version: str | None, rates: Rates
) -> Exported:
    """Return the plan as the engine carries it.

    Args:
        plan: to be exported.
        engine: whose configuration is wanted.
        drafters: the plan's, by name.
        target: path of the target.
        version: of the engine; the newest recorded one where None.
        rates: by which its ways are compared.

    Raises:
        RequestError: the version's options were not recorded.
        PlanError: the engine's schema does not take what would be written.
    """
    recorded = recorded_version(engine.name, version)
    places = [(cell.batch, cell.context) for cell in plan.cells]
    settings = expressible(engine, plan, drafters, recorded)
    told = {setting for one, setting in settings.items() if not setting.differs and rates.known.get(one)}
    plain = Offer(policy=PLAIN[0], setting=None, rates=rates.of(PLAIN, places))
    offers = [
        Offer(policy=one[0], setting=setting, rates=_within(rates.of(one, places), setting))
        for one, setting in settings.items()
        if not (setting.differs and replace(setting, differs="") in told)  # else the same twice, once at a wrong price
    ]
    line = _planned(plan, settings) or best_line(plain, offers)
    schedule = schedule_of(line)
    written = engine.written(schedule, target, recorded)
    require_known(engine.name, recorded, written.options)
    dropped = tuple(
        _dropped(cell, line, _reason(cell, line, engine, drafters, recorded), rates)
        for cell in plan.cells
        if not _is_carried(cell, line.offers[cell.batch])
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
        notes=(*_notes(line), *written.notes, *(rates.notes if dropped else ())),
    )


def _planned(plan: Plan, settings: Mapping[Staged, Setting]) -> Line | None:
    """Return the plan's own line, None where a server cannot follow it: what it can follow is not solved for anew."""
    taken: dict[int, Offer] = {}
    for cell in plan.cells:
        setting = settings.get((cell.policy, cell.drafter))
        is_plain = isinstance(cell.policy, PlainPolicy)
        offer = Offer(policy=cell.policy, setting=setting, rates={})
        if (setting is None or setting.differs) and not is_plain:
            return None
        if taken.setdefault(cell.batch, offer) != offer:
            return None
    return Line(offers=taken, score=0.0) if is_allowed(taken) else None


def _setting(engine: Engine, one: Staged, drafters: Drafters, version: str) -> Setting | str:
    policy, name = one
    return engine.setting(policy, drafters.get(name or ""), version)


def _within(rates: dict[Place, float | None], setting: Setting) -> dict[Place, float | None]:
    """Return the rates at batches that a setting works at."""
    if setting.most_batch is None:
        return rates
    return {place: rate for place, rate in rates.items() if place[0] <= setting.most_batch}


def _drafter_of(offer: Offer) -> str | None:
    if offer.setting is None:
        return None
    return LOOKUP if offer.setting.drafter is None else offer.setting.drafter.name


def _is_carried(cell: PlanCell, offer: Offer) -> bool:
    is_same = (offer.policy, _drafter_of(offer)) == (cell.policy, cell.drafter)
    return is_same and (offer.setting is None or not offer.setting.differs)


def _reason(cell: PlanCell, line: Line, engine: Engine, drafters: Drafters, version: str) -> str:
    """Say why a cell does not get what it wants."""
    if isinstance(cell.policy, PlainPolicy):
        return "the server drafts where it pays over all cells, and has no off here, or loses nothing by drafting"
    wanted = _setting(engine, (cell.policy, cell.drafter), drafters, version)
    if isinstance(wanted, str):
        return wanted
    if wanted.most_batch is not None and cell.batch > wanted.most_batch:
        return f"it drafts up to batch {wanted.most_batch} only"
    if (cell.policy, cell.drafter) == (line.offers[cell.batch].policy, _drafter_of(line.offers[cell.batch])):
        return wanted.differs
    taken = line.setting
    if taken is None or taken.group != wanted.group:
        return "a server drafts in one way, and another one is as good or better over all cells"
    if wanted.by_batch:
        return "lengths follow the batch and not the context, and this one is as good or better over its contexts"
    return "a server has one length for all batches, and another one is as good or better over all cells"


def _dropped(cell: PlanCell, line: Line, reason: str, rates: Rates) -> Dropped:
    offer, place = line.offers[cell.batch], (cell.batch, cell.context)
    gets = (offer.policy, _drafter_of(offer))
    return Dropped(
        batch=cell.batch,
        context=cell.context,
        wanted=cell.policy.label,
        wanted_drafter=cell.drafter,
        gets=_label(offer.policy, offer.setting),
        gets_drafter=gets[1],
        reason=reason,
        wanted_tokens_per_s=rates.known.get((cell.policy, cell.drafter), {}).get(place),
        gets_tokens_per_s=rates.known.get(gets, {}).get(place),
    )


def _label(policy: TreePolicy, setting: Setting | None) -> str:
    like = setting is not None and setting.differs
    return f"{setting.method}, priced as {policy.label}" if like and setting is not None else policy.label


def _basis(dropped: Sequence[Dropped], rates: Rates) -> Basis:
    if not dropped:
        return "as planned"
    return "re-solved" if rates.is_complete else "alternatives"


def _kept(dropped: Sequence[Dropped], cells: int) -> float | None:
    losses = [one.loss for one in dropped]
    if any(loss is None for loss in losses):
        return None
    return math.exp(sum(math.log1p(-loss) for loss in losses if loss is not None) / cells)


def _notes(line: Line) -> tuple[str, ...]:
    setting = line.setting
    return () if setting is None or not setting.differs else (setting.differs,)
