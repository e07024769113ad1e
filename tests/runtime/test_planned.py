"""The planned schedule: what it remembers between rounds changes no answer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spectune.planner.plans.plan import PlanCell
from spectune.planner.plans.schedule import next_cell
from spectune.runtime.batch.step_config import PlannedSchedule

from ..support.plans import plan_of

GRIDS = [
    [(1, 100)],
    [(batch, context) for batch in (1, 4, 8) for context in (10, 50, 120, 1000)],
    [(1, 10), (1, 300), (4, 40), (8, 500), (8, 510)],
]


@pytest.mark.thinned
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("hysteresis", [1.0, 1.15, 1.6])
@pytest.mark.parametrize("seed", range(3))
def test_it_answers_as_if_every_round_were_looked_up(grid: list[tuple[int, int]], seed: int, hysteresis: float) -> None:
    source, plan = random.Random(seed), replace(plan_of(grid), hysteresis=hysteresis)
    schedule, batch, context = PlannedSchedule(plan), 1, 1
    current: PlanCell | None = None
    for _ in range(3000):
        context = source.randrange(1, 900) if source.random() < 0.01 else context + source.randrange(1, 5)
        batch = source.randrange(1, 12) if source.random() < 0.02 else batch
        current = next_cell(plan, current, batch, context)
        assert schedule(batch, context) is current
