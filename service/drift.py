"""Whether a plan keeps its promises where it runs: what decoders saw, against the intervals of its cells.

The test is the decoder's own (`runtime.watch.drift`): blocks are taken in the order in which they were reported, and
the chance that drift is ever told of a plan that keeps to its intervals is `FALSE_ALARMS`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..planner.plans.observation import Observation
from ..planner.plans.plan import Plan, PlanCell
from ..planner.plans.promised import is_promised, own_observations
from ..runtime.watch.drift import Direction
from ..runtime.watch.hindsight import direction_of

FALSE_ALARMS = 0.01  # as in the decoder's watch


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDrift:
    """One cell: promised and observed tokens/s of all sequences, as at its context; None where no block was seen."""

    batch: int
    context: int
    policy: str
    drafter: str | None
    predicted_tokens_per_s: float
    low: float
    high: float
    blocks: int
    below: int  # blocks slower than low
    above: int  # blocks faster than high
    median_tokens_per_s: float | None
    found: Direction | None  # drift that the test has told


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """All cells of a plan."""

    plan_id: int
    false_alarms: float
    observations: int
    elsewhere: int  # of these, on a device or in a number format that the plan promises nothing about
    unreadable: int  # beside these
    is_drifting: bool
    cells: tuple[CellDrift, ...]


def drift_of(plan_id: int, plan: Plan, observations: Sequence[Observation], unreadable: int = 0) -> DriftReport:
    """Return what observations, oldest first, say about a plan's promises."""
    own = own_observations(plan, observations)
    blocks: dict[tuple[int, int], list[float]] = {(cell.batch, cell.context): [] for cell in plan.cells}
    cells = {(cell.batch, cell.context): cell for cell in plan.cells}
    for seen in own:
        for part in seen.cells:
            place = (part.batch, part.context)
            if place in cells and is_promised(part, cells[place]):
                blocks[place] += part.block_tokens_per_s
    rate = FALSE_ALARMS / len(plan.cells)
    found = tuple(_judged(cell, blocks[cell.batch, cell.context], rate) for cell in plan.cells)
    return DriftReport(
        plan_id=plan_id,
        false_alarms=FALSE_ALARMS,
        observations=len(observations),
        elsewhere=len(observations) - len(own),
        unreadable=unreadable,
        is_drifting=any(cell.found is not None for cell in found),
        cells=found,
    )


def _judged(cell: PlanCell, speeds: Sequence[float], rate: float) -> CellDrift:
    promise = cell.prediction
    return CellDrift(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.label,
        drafter=cell.drafter,
        predicted_tokens_per_s=promise.tokens_per_s,
        low=promise.low,
        high=promise.high,
        blocks=len(speeds),
        below=sum(speed < promise.low for speed in speeds),
        above=sum(speed > promise.high for speed in speeds),
        median_tokens_per_s=statistics.median(speeds) if speeds else None,
        found=direction_of(speeds, promise.low, promise.high, rate),
    )
