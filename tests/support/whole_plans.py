"""The contract of stores with plans that are plans, as a service wants them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from spectune.db.store import Store
from spectune.errors import StoreError
from spectune.planner.plans.document import plan_to_json
from spectune.profiler.records.wire import to_json

from .filled_service import observation, validation
from .plan_contract import PlanKeeping
from .plans import plan_of
from .store_records import SETUP

PLAN = plan_of([(1, 100), (4, 100)])
DEVICES = {device.fingerprint: device for device in (PLAN.device, replace(PLAN.device, driver="other"))}


class WholePlans(PlanKeeping):
    """Every plan and every outcome of the contract is a record, filed under what it says itself."""

    device, other = DEVICES
    kind = PLAN.device.kind_key
    setup: ClassVar = {**SETUP, "target": PLAN.target.key}

    def plan_text(self, note: str, device: str = "", **setup: Any) -> str:
        filed = {**self.setup, **setup}
        return plan_to_json(
            replace(
                PLAN,
                device=DEVICES[device or self.device],
                workload=filed["workload"],
                temperature=filed["temperature"],
                provenance=replace(PLAN.provenance, notes=(note,)),
            )
        )

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_outcomes_of_a_plan_come_back_oldest_first(self, store: Store, kind: str) -> None:
        plan_id, other = self.add_plan(store), self.add_plan(store)
        for target in (plan_id, other, plan_id):
            getattr(store, f"add_{kind}")(target, outcome(kind, target))
        assert getattr(store, f"{kind}s")(plan_id) == [outcome(kind, plan_id)] * 2

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_an_outcome_of_an_unknown_plan_is_refused(self, store: Store, kind: str) -> None:
        with pytest.raises(StoreError, match="no plan 7"):
            getattr(store, f"add_{kind}")(7, outcome(kind, 7))


def outcome(kind: str, plan_id: int) -> str:
    """Return the text of an observation or a validation of a plan."""
    return to_json(observation(plan_id) if kind == "observation" else validation(plan_id))
