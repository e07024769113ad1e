"""The pace of a device when its plans were used, over its pace when it was profiled, from the store.

Validations gauge it. Self-watching decoders do too: a plain round yields one token, so plain speed over promise is it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from ..db.rows import PlanRow
from ..db.store import Store
from ..errors import SpectuneError
from ..planner.plans.document import plan_from_json
from ..planner.plans.observation import CellObservation, Observation, moment_of
from ..planner.plans.plan import Plan
from ..planner.plans.promised import own_observations
from ..planner.plans.validation import Validation
from ..planner.strategies.plain import PlainPolicy
from ..profiler.records.wire import readable

NEWEST = 16  # validations, and hours of decoding, that are remembered
PLANS = 64  # the newest ones, among which validations are looked for
OBSERVED_PLANS = 8  # the newest ones, among whose observations hours are looked for
NEWEST_OBSERVATIONS = 1_000  # of a plan, among which they are


def paces_of(store: Store, device: str, target: str) -> tuple[float, ...]:
    """Return a device's paces with a target's plans (by key), over its pace when it was profiled.

    One per newest validation (median over its cells), then one per newest hour of decoding (median); each newest first.
    """
    rows = store.plans(device=device, target=target)[::-1]
    return (*_gauged(store, rows[:PLANS]), *_decoded(store, rows[:OBSERVED_PLANS]))


def _gauged(store: Store, rows: Iterable[PlanRow]) -> list[float]:
    found: list[float] = []
    for row in rows:
        if len(found) < NEWEST:
            newest_first = reversed(readable(Validation, store.validations(row.id)))
            found += [pace for validation in newest_first for pace in _paces(validation)]
    return found[:NEWEST]


def _decoded(store: Store, rows: Iterable[PlanRow]) -> list[float]:
    found: list[float] = []
    for row in rows:
        if len(found) < NEWEST:
            seen = readable(Observation, store.newest_observations(row.id, NEWEST_OBSERVATIONS))
            found += _of_hours(seen, store.plan(row.id)) if seen else []
    return found[:NEWEST]


def _paces(validation: Validation) -> list[float]:
    gauged = [row.machine_speed for row in validation.rows if row.machine_speed is not None]
    return [statistics.median(gauged)] if gauged else []


def _of_hours(seen: Iterable[Observation], document: str) -> list[float]:
    try:
        plan = plan_from_json(document)
    except SpectuneError:  # of another version, or damaged: nothing says what was promised
        return []
    hours: defaultdict[str, list[float]] = defaultdict(list)
    for one in own_observations(plan, seen):
        hours[moment_of(one.ended).strftime("%Y-%m-%d %H")] += _plain_paces(one.cells, plan)
    return [statistics.median(hours[hour]) for hour in sorted(hours, reverse=True) if hours[hour]]


def _plain_paces(cells: Iterable[CellObservation], plan: Plan) -> list[float]:
    code, promised = PlainPolicy().code, {(cell.batch, cell.context): cell.plain.tokens_per_s for cell in plan.cells}
    return [
        speed / promised[cell.batch, cell.context]
        for cell in cells
        if cell.policy == code and (cell.batch, cell.context) in promised
        for speed in cell.block_tokens_per_s
        if speed > 0.0
    ]
