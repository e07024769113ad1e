"""Drift of a plan: blocks of its own device, run its own way, against its intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.planner.plans.observation import CellObservation, Observation
from spectune.service.plans import drift_of

from ..support.plans import plan_of

PLAN = plan_of([(1, 100), (4, 100)])  # promises 90 to 110 tokens/s


def seen(speeds: tuple[float, ...], batch: int = 1, is_planned: bool = True) -> Observation:
    cell = CellObservation(
        batch=batch, context=100, is_planned=is_planned, policy="plain", drafter=None, rounds=1, tokens=1, kept=(0, 1),
        draft_ms=0.0, verify_ms=1.0, round_ms=1.0, block_tokens_per_s=speeds,
    )  # fmt: skip
    moment = "2026-01-01T00:00:00Z"
    return Observation(
        plan_id=1, device=PLAN.device.fingerprint, dtype="float32", source="here", spectune="0.1", began=moment,
        ended=moment, cells=(cell,),
    )  # fmt: skip


@pytest.mark.parametrize(("speed", "found"), [(50.0, "slower"), (100.0, None), (90.0, None), (150.0, "faster")])
def test_steady_speeds_outside_the_interval_are_drift(speed: float, found: str | None) -> None:
    report = drift_of(1, PLAN, [seen((speed,) * 10) for _ in range(4)])
    first, second = report.cells
    assert (first.blocks, first.median_tokens_per_s, first.found) == (40, speed, found)
    assert (second.blocks, second.median_tokens_per_s, second.found) == (0, None, None)
    assert report.is_drifting == (found is not None)


def test_a_few_slow_blocks_prove_nothing() -> None:
    report = drift_of(1, PLAN, [seen((50.0, 100.0, 100.0) * 20)])
    assert report.cells[0].below == 20 and not report.is_drifting


def test_blocks_of_another_device_number_format_or_way_are_not_held_against_the_plan() -> None:
    elsewhere = replace(seen((1.0,) * 100), device="elsewhere")
    half = replace(seen((1.0,) * 100), dtype="bfloat16")
    others = [seen((1.0,) * 100, is_planned=False), seen((1.0,) * 100, batch=2)]
    report = drift_of(1, PLAN, [elsewhere, half, *others])
    assert (report.observations, report.elsewhere) == (4, 2)
    assert not report.is_drifting and report.cells[0].blocks == 0
