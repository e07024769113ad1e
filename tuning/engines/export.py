"""What exports a plan that was measured in an engine: every policy, priced on the engine's own records.

A plan lists one length of each source, but a server's one line for all concurrencies may be best with one in no cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from ...db.store import Store
from ...engines.rates import Rates
from ...errors import PlanError
from ...planner.engines.choice import Offer, Way
from ...planner.plans.plan import Plan
from ...planner.plans.schedule import Place
from ...planner.search.restricted import Staged
from ...planner.strategies.chain import ChainPolicy
from ...profiler.records.model import ModelIdentity
from .plan import EnginePlanRequest, EngineRecords, offers_of_records, records_of
from .record import workload_in

LEAST = 1e-9  # of a speed, whatever its error


def rates_of_engine(plan: Plan, engine: str, store: Store) -> Rates:
    """Return the prices of policies in every cell of a plan, on the newest records of its engine.

    They are the plan's own policies and those of `_sure_over_all`.

    Raises:
        StoreError: the records are missing.
        RequestError: a concurrency was not profiled.
        PlanError: the records do not fit together, or are not of the plan's drafters.
    """
    records, offers = offers_of_plan(plan, engine, store)
    known: dict[Staged, dict[Place, float]] = {}
    ways = _sure_over_all(list(offers.values())) | {(cell.policy, cell.drafter) for cell in plan.cells}
    for cell in plan.cells:
        for offer in offers[cell.batch]:
            if offer.way in ways:
                known.setdefault(offer.way, {})[cell.batch, cell.context] = offer.tokens_per_s
    _require_own_ways(plan, known)
    regime = records.surfaces[0].regime
    note = f"speeds are of the regime {regime!r}, in which the engine was measured here"
    return Rates(known=known, is_complete=True, notes=(note, *records.notes))


def offers_of_plan(plan: Plan, engine: str, store: Store) -> tuple[EngineRecords, dict[int, list[Offer]]]:
    """Return the newest records of a plan's engine, and every policy by concurrency; errors as of `rates_of_engine`."""
    request = EnginePlanRequest(
        engine=engine,
        target=plan.target,
        device=plan.device,
        dtype=plan.dtype,
        workload=plan.workload.removesuffix(workload_in(engine, "")),
        concurrencies=tuple(sorted({cell.batch for cell in plan.cells})),
    )
    records = records_of(request, store)
    _require_same_drafters(plan, dict(records.identities.drafters))
    return records, offers_of_records(request, records)


def _sure_over_all(offers: Sequence[Sequence[Offer]]) -> set[Staged]:
    """Return the policies fit for one line over all concurrencies: timed, or surely better together (`sure_of`).

    A chain between two timed lengths of its drafter counts as well: their forwards tell most of its cost.
    """
    by_way: dict[Way, list[Offer]] = {}
    for offer in (one for own in offers for one in own):
        by_way.setdefault(offer.way, []).append(offer)
    whole = {way: own for way, own in by_way.items() if len(own) == len(offers)}
    timed = {way for way, own in whole.items() if all(offer.is_timed for offer in own)}
    best = max(_mean_log(whole[way]) for way in timed)
    sure = {way for way, own in whole.items() if _mean_log(own, is_sure=True) > best}
    return timed | sure | {way for way in whole if _is_between(way, by_way)}


def _is_between(way: Way, offers: Mapping[Way, Sequence[Offer]]) -> bool:
    policy, drafter = way
    timed = [
        other.length
        for (other, who), own in offers.items()
        if who == drafter and isinstance(other, ChainPolicy) and any(offer.is_timed for offer in own)
    ]
    return isinstance(policy, ChainPolicy) and min(timed, default=0) <= policy.length <= max(timed, default=0)


def _mean_log(offers: Sequence[Offer], *, is_sure: bool = False) -> float:
    """Return the mean logarithm of speeds; with `is_sure`, of the speeds less their error."""
    return fmean(math.log(offer.tokens_per_s * max(LEAST, 1.0 - offer.cost.error * is_sure)) for offer in offers)


def _require_same_drafters(plan: Plan, held: dict[str, ModelIdentity]) -> None:
    other = [name for name, model in plan.drafters if name not in held or held[name].key != model.key]
    if other:
        raise PlanError(f"there are no measurements of {', '.join(other)}; profile the engine with the plan's drafters")


def _require_own_ways(plan: Plan, known: dict[Staged, dict[Place, float]]) -> None:
    for cell in plan.cells:
        if (cell.batch, cell.context) not in known.get((cell.policy, cell.drafter), {}):
            raise PlanError(f"{cell.policy.label} has no price at {cell.batch} sequences; profile and plan again")
