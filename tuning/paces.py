"""How fast a device was when its plans were validated, against when it was profiled: what the store remembers."""

from __future__ import annotations

import statistics

from ..db.store import Store
from ..planner.plans.validation import Validation
from ..profiler.records.wire import readable

NEWEST = 16  # validations that are remembered
PLANS = 64  # the newest ones, among which they are looked for


def paces_of(store: Store, device: str, target: str) -> tuple[float, ...]:
    """Return one pace per newest validation of a target's plans on a device, the median over its cells; newest first.

    Args:
        store: what is remembered.
        device: under which the plans are filed.
        target: ModelIdentity.key.
    """
    found: list[float] = []
    for row in reversed(store.plans(device=device, target=target)[-PLANS:]):
        if len(found) >= NEWEST:
            break
        found += [pace for one in reversed(readable(Validation, store.validations(row.id))) for pace in _paces(one)]
    return tuple(found[:NEWEST])


def _paces(validation: Validation) -> list[float]:
    """Return the middle pace of its cells, or none where nothing was gauged."""
    gauged = [row.machine_speed for row in validation.rows if row.machine_speed is not None]
    return [statistics.median(gauged)] if gauged else []
