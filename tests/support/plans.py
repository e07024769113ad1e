"""Plans made by hand: plain decoding in chosen cells."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.plans.prediction import ErrorParts, Prediction
from spectune.planner.plans.provenance import Provenance
from spectune.planner.strategies.plain import PlainPolicy

from .synthetic import DEVICE, TARGET

NO_ERRORS = ErrorParts(acceptance=0.0, surfaces=0.0, drift=0.0, optimism=0.0)
PLAIN_PROMISE = Prediction(
    tokens_per_s=100.0,
    low=90.0,
    high=110.0,
    tokens_per_round=1.0,
    round_ms=10.0,
    draft_ms=0.0,
    verify_ms=9.0,
    host_ms=1.0,
    speedup_over_plain=1.0,
    speedup_low=1.0,
    speedup_high=1.0,
    errors=NO_ERRORS,
)


def plain_cell(batch: int, context: int) -> PlanCell:
    """Return a cell that does not speculate."""
    return PlanCell(
        batch=batch,
        context=context,
        policy=PlainPolicy(),
        drafter=None,
        run_tokens=(0, 1),
        prediction=PLAIN_PROMISE,
        plain=PLAIN_PROMISE,
        runner_up=None,
        alternatives=(),
    )


def plan_of(places: Sequence[tuple[int, int]]) -> Plan:
    """Return a plan of plain cells at (batch, context) places."""
    return Plan(
        device=DEVICE,
        target=TARGET,
        drafters=(),
        dtype="float32",
        workload="made up",
        temperature=0.0,
        cells=tuple(plain_cell(batch, context) for batch, context in places),
        provenance=Provenance(
            created="2026-01-01T00:00:00Z",
            spectune="0.1",
            surfaces=(),
            traces=(),
            texts=2,
            seed=0,
            candidates=1,
            pruned=0,
            censored=(),
            notes=(),
        ),
    )
