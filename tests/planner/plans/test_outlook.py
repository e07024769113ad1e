"""Records of what would change an answer: what cannot be is refused, the rest comes back from JSON."""

from __future__ import annotations

import pytest

from spectune.errors import PlanError
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.outlook import Outlook, Scenario
from spectune.planner.records.tree import ShapeFacts
from spectune.planner.strategies.chain import ChainPolicy

from ...support.priced_cells import PLAIN, cell_of, plan_with, priced

BARE = {"scenarios": (), "break_even": None, "needed": None, "worth_per_percent": 0.0, "perfect_tokens_per_s": None}


def test_an_outlook_and_a_shape_come_back_with_their_plan() -> None:
    shape = ShapeFacts(verified=(1.0, 1.0), reached=(0.8, 0.3), taken=(1.0, 0.8, 0.3))
    plan = plan_with(cell_of([PLAIN, priced(ChainPolicy(length=2), 2.1)], shape=shape))
    assert plan_from_json(plan_to_json(plan)) == plan


@pytest.mark.parametrize(("loss", "speedup"), [(-0.1, 1.0), (1.1, 1.0), (0.0, -1.0), (0.0, float("inf"))])
def test_a_scenario_that_cannot_be_is_refused(loss: float, speedup: float) -> None:
    with pytest.raises(PlanError):
        Scenario(change="host", factor=0.9, label="plain", drafter=None, loss=loss, speedup=speedup)


@pytest.mark.parametrize("wrong", [{"break_even": 1.5}, {"break_even": -0.1}, {"perfect_length": 3}])
def test_an_outlook_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        Outlook(**{**BARE, **wrong})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("verified", "reached", "taken"),
    [
        ((1.0,), (0.5, 0.2), ()),
        ((1.0, 1.0), (0.2, 0.5), ()),
        ((1.0,), (1.2,), ()),
        ((1.0,), (0.5,), (0.9, 0.5)),
        ((1.0,), (0.5,), (1.0, 1.5)),
    ],
)
def test_a_shape_that_cannot_be_is_refused(verified, reached, taken) -> None:
    with pytest.raises(PlanError):
        ShapeFacts(verified=verified, reached=reached, taken=taken)
