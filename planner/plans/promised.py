"""What of observations a plan's promise is about: one device, one number format, each cell's own way of decoding."""

from __future__ import annotations

from collections.abc import Iterable

from .observation import CellObservation, Observation
from .plan import Plan, PlanCell


def own_observations(plan: Plan, observations: Iterable[Observation]) -> list[Observation]:
    """Return what was seen where a plan promises something: on its device, in its number format."""
    place = (plan.device.fingerprint, plan.dtype)  # a hash, so not computed for every observation
    return [seen for seen in observations if (seen.device, seen.dtype) == place]


def is_promised(part: CellObservation, cell: PlanCell) -> bool:
    """Return whether rounds of a cell ran the way that it promises something about."""
    return part.is_planned and (part.policy, part.drafter) == (cell.policy.code, cell.drafter)
