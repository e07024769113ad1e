"""The engine in which a plan's speeds were measured, by the regimes of its surfaces."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..planner.plans.plan import Plan

REGIME = re.compile(r"engine:(.+?)-(\w*\d[^@]*)")  # NAME-VERSION; behind it "@WORKLOAD" may stand


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIn:
    """An engine by name, and its own version."""

    engine: str
    version: str


def measured_in(plan: Plan) -> MeasuredIn | None:
    """Return the engine in whose own regime a plan was priced; None for plans of our own decoder."""
    found = (REGIME.match(surface.regime) for surface in plan.provenance.surfaces)
    own = next((one for one in found if one is not None), None)
    return None if own is None else MeasuredIn(engine=own[1], version=own[2])
