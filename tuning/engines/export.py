"""What a plan that was measured in an engine is exported by: the engine's own records, every way priced on them.

A plan lists the fastest way of every other source, and no other length of its own. One server has one line for all
concurrencies, and the best one may be in no cell.
"""

from __future__ import annotations

from ...db.store import Store
from ...errors import PlanError
from ...planner.plans.plan import Plan
from ...planner.plans.schedule import Place
from ...planner.search.restricted import Staged
from ...profiler.records.model import ModelIdentity
from ...runtime.engines.rates import Rates
from .plan import EnginePlanRequest, offers_of_records, records_of
from .record import workload_in


def rates_of_engine(plan: Plan, engine: str, store: Store) -> Rates:
    """Return the prices of all ways in every cell of a plan, on the newest records of the engine it was made for.

    Args:
        plan: that was measured in the engine.
        engine: by name.
        store: that holds its records.

    Raises:
        StoreError: the records are not there.
        RequestError: a concurrency was not profiled.
        PlanError: the records do not fit together, or are not of the plan's drafters.
    """
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
    offers = offers_of_records(request, records)
    known: dict[Staged, dict[Place, float]] = {}
    for cell in plan.cells:
        for offer in offers[cell.batch]:
            known.setdefault(offer.way, {})[cell.batch, cell.context] = offer.tokens_per_s
    _require_own_ways(plan, known)
    regime = records.surfaces[0].regime
    note = f"speeds are of the regime {regime!r}, in which the engine was measured here"
    return Rates(known=known, is_complete=True, notes=(note, *records.notes))


def _require_same_drafters(plan: Plan, held: dict[str, ModelIdentity]) -> None:
    other = [name for name, model in plan.drafters if name not in held or held[name].key != model.key]
    if other:
        raise PlanError(f"there are no measurements of {', '.join(other)}; profile the engine with the plan's drafters")


def _require_own_ways(plan: Plan, known: dict[Staged, dict[Place, float]]) -> None:
    """Raise PlanError where what a plan chose has no price any more."""
    for cell in plan.cells:
        if (cell.batch, cell.context) not in known.get((cell.policy, cell.drafter), {}):
            raise PlanError(f"{cell.policy.label} has no price at {cell.batch} sequences; profile and plan anew")
