"""How fast a device was when its plans were used, against when it was profiled: what the store remembers.

Validations gauge it. Decoders that watch themselves tell it, too: plain rounds keep one token each whatever the texts,
so the speed of plain decoding over what was promised of it is the device's pace. A plan's decoders compare it with
plain decoding again and again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from ..db.plans import PlanRow
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
    """Return paces of a device when a target's plans were used there, over when they were profiled.

    Args:
        store: what is remembered.
        device: under which the plans are filed.
        target: ModelIdentity.key.

    Returns:
        One per newest validation, the median over its cells, and one per newest hour of decoding, the median over what
        was timed in it; each newest first.
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
    """Return the middle pace of its cells, or none where nothing was gauged."""
    gauged = [row.machine_speed for row in validation.rows if row.machine_speed is not None]
    return [statistics.median(gauged)] if gauged else []


def _of_hours(seen: Iterable[Observation], document: str) -> list[float]:
    """Return the middle pace of each hour in which a plan's decoders timed plain rounds, the newest first."""
    try:
        plan = plan_from_json(document)
    except SpectuneError:  # of another version, or damaged: nothing says what was promised
        return []
    hours: defaultdict[str, list[float]] = defaultdict(list)
    for one in own_observations(plan, seen):
        hours[moment_of(one.ended).strftime("%Y-%m-%d %H")] += _plain_paces(one.cells, plan)
    return [statistics.median(hours[hour]) for hour in sorted(hours, reverse=True) if hours[hour]]


def _plain_paces(cells: Iterable[CellObservation], plan: Plan) -> list[float]:
    """Return the speeds of blocks of plain rounds over those promised."""
    code, promised = PlainPolicy().code, {(cell.batch, cell.context): cell.plain.tokens_per_s for cell in plan.cells}
    return [
        speed / promised[cell.batch, cell.context]
        for cell in cells
        if cell.policy == code and (cell.batch, cell.context) in promised
        for speed in cell.block_tokens_per_s
        if speed > 0.0
    ]
