"""How fast a device was when its plans were validated, against when it was profiled: what the store remembers."""

from __future__ import annotations

import statistics

from ..db.store import Store
from ..planner.plans.validation import Validation
from ..profiler.records.wire import readable

NEWEST = 16  # plans whose validations are read


def paces_of(store: Store, device: str, target: str) -> tuple[float, ...]:
    """Return one pace per validation of a target's newest plans on a device, the median over its cells.

    Args:
        store: what is remembered.
        device: under which the plans are filed.
        target: ModelIdentity.key.
    """
    rows = store.plans(device=device, target=target)[-NEWEST:]
    validations = [found for row in rows for found in readable(Validation, store.validations(row.id))]
    gauged = [[row.machine_speed for row in one.rows if row.machine_speed is not None] for one in validations]
    return tuple(statistics.median(paces) for paces in gauged if paces)
