"""Whether a plan keeps its promises where it runs: what decoders saw, against the intervals of its cells.

The test is the decoder's own (`runtime.watch.drift`): blocks in order of time. A plan that keeps to its intervals is
called drifting with a chance of `false_alarms` over all observations looked at together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..planner.plans.observation import Observation, moment_of
from ..planner.plans.plan import Plan
from ..planner.plans.promised import own_observations
from ..report.site.kept import KeptCell, kept_cells
from ..runtime.watch.drift import Direction
from ..runtime.watch.options import WatchOptions


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


DRIFT = DriftReport(  # for the OpenAPI document
    plan_id=7,
    false_alarms=0.01,
    observations=12,
    elsewhere=0,
    unreadable=0,
    is_drifting=True,
    cells=(
        CellDrift(
            batch=1,
            context=256,
            policy="chain of 4",
            drafter="small",
            predicted_tokens_per_s=190.0,
            low=180.0,
            high=200.0,
            blocks=40,
            below=38,
            above=0,
            median_tokens_per_s=151.3,
            found="slower",
        ),
    ),
)


def drift_of(plan_id: int, plan: Plan, observations: Sequence[Observation], unreadable: int = 0) -> DriftReport:
    """Return what observations say about a plan's promises, judged as the plan's page judges as many."""
    in_order = sorted(observations, key=lambda each: moment_of(each.began))
    cells = tuple(map(_told, kept_cells(plan, [], in_order)))
    return DriftReport(
        plan_id=plan_id,
        false_alarms=WatchOptions().false_alarms,
        observations=len(observations),
        elsewhere=len(observations) - len(own_observations(plan, observations)),
        unreadable=unreadable,
        is_drifting=any(cell.found is not None for cell in cells),
        cells=cells,
    )


def _told(kept: KeptCell) -> CellDrift:
    cell, promise, verdict = kept.cell, kept.cell.prediction, kept.verdict
    return CellDrift(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.code,
        drafter=cell.drafter,
        predicted_tokens_per_s=promise.tokens_per_s,
        low=promise.low,
        high=promise.high,
        blocks=len(kept.blocks),
        below=sum(speed < promise.low for speed in kept.blocks),
        above=sum(speed > promise.high for speed in kept.blocks),
        median_tokens_per_s=kept.measured_speed,
        found=verdict if verdict == "slower" or verdict == "faster" else None,
    )
