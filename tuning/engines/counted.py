"""An engine's counters as an observation of the plan that it ran, stored beside the plan with their source.

Rounds that accepted k tokens or more are the unconditional acceptance of position k times the rounds: so counters give
the histogram of an observation. They tell no time, and judge no promised speed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ...db.store import Store
from ...errors import RequestError
from ...planner.plans.document import plan_from_json
from ...planner.plans.observation import CellObservation, Observation
from ...planner.plans.plan import Plan, PlanCell
from ...planner.strategies.chain import ChainPolicy
from ...profiler.records.wire import readable, to_json
from .counters import Counted, CountedAcceptance, CounterFormat

IMPORTED = "imported:"  # how the source of such an observation begins


def counted_observation(
    found: Counted,
    plan: Plan,
    *,
    plan_id: int,
    place: tuple[int | None, int | None],
    file: Path,
    file_format: CounterFormat,
    spectune: str,
    now: str,
) -> Observation:
    """Return what a file of counters says of one cell of a plan.

    `place` is batch and context of the cell; None where the plan leaves no choice. The file's name and sha256 are
    stored. `now` is the time of import (ISO 8601): the counters do not say when they were counted.

    Raises:
        RequestError: the counters tell no rounds or no positions, or the place is no single cell of the plan.
    """
    usable = [one for one in found.acceptance if one.drafts and one.by_position]
    if len(usable) != 1:
        raise RequestError(
            f"{file} has rounds and acceptance by position of {len(usable)} runs; an observation is of one. Import "
            "a scrape of /metrics of the server that ran the plan"
        )
    cell = _cell(plan, *place)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Observation(
        plan_id=plan_id,
        device=plan.device.fingerprint,
        dtype=plan.dtype,
        source=f"{IMPORTED}{file_format}",
        spectune=spectune,
        began=now,
        ended=now,
        cells=(_observed(usable[0], cell),),
        events=(f"read from {file.name}, sha256 {digest}", *usable[0].notes),
    )


def keep_observation(store: Store, found: Observation) -> bool:
    """Add an observation to its plan and return True; False where the same file is at the same cell already."""
    place = _place(found)
    for known in readable(Observation, store.observations(found.plan_id)):
        if known.source == found.source and _place(known) == place and known.events[:1] == found.events[:1]:
            return False
    store.add_observation(found.plan_id, to_json(found))
    return True


def imported_observations(store: Store, plan_id: int) -> Sequence[Observation]:
    """Return what was imported of a plan, oldest first, as far as it can be read."""
    known = readable(Observation, store.observations(plan_id))
    return [one for one in known if one.source.startswith(IMPORTED)]


def stored_plan(store: Store, plan_id: int) -> Plan:
    """Return a plan of the store."""
    return plan_from_json(store.plan(plan_id))


def _place(found: Observation) -> list[tuple[int, int]]:
    return [(cell.batch, cell.context) for cell in found.cells]


def _cell(plan: Plan, batch: int | None, context: int | None) -> PlanCell:
    fitting = [cell for cell in plan.cells if batch in (None, cell.batch) and context in (None, cell.context)]
    if len(fitting) != 1:
        known = ", ".join(f"{cell.batch} x {cell.context}" for cell in plan.cells)
        raise RequestError(
            f"counters are of one cell, and {len(fitting)} of the plan's fit (batch x context: {known}); give --batch "
            "and --context"
        )
    return fitting[0]


def _observed(one: CountedAcceptance, cell: PlanCell) -> CellObservation:
    """Return counts as rounds: kept[1 + k] of them accepted exactly k drafted tokens."""
    assert one.drafts is not None
    length = len(one.by_position)
    at_least = [one.drafts, *(round(one.drafts * rate) for rate in one.by_position), 0]
    is_planned = cell.policy == ChainPolicy(length=length)
    return CellObservation(
        batch=cell.batch,
        context=cell.context,
        is_planned=is_planned,
        policy=cell.policy.code if is_planned else f"an engine's drafts of {length}",
        drafter=cell.drafter,
        rounds=one.drafts,
        tokens=sum(at_least),
        kept=(0, *(more - fewer for more, fewer in pairwise(at_least))),
        draft_ms=0.0,
        verify_ms=0.0,
        round_ms=0.0,
    )
