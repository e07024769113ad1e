"""What a store remembers of a device's pace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.observation import CellObservation, Observation
from spectune.planner.plans.plan import Plan
from spectune.planner.plans.validation import Validation, ValidationRow
from spectune.planner.pricing.cells import cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.profiler.records.wire import to_json
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.paces import NEWEST, paces_of

from ..planner.pricing.test_pace import told
from .test_one_regime import REQUEST, profile


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def planned(store: Store, device: str = "", target: str = "") -> int:
    """Keep a plan and return its id."""
    return store.add_plan(
        "{}",
        device=device or REQUEST.device.fingerprint,
        device_kind="kind",
        target=target or REQUEST.target.key,
        workload="made up",
        temperature=0.0,
    )


def gauged(plan: int, *paces: float | None) -> str:
    """Return a validation of a plan, with a row per pace."""
    rows = tuple(
        ValidationRow(
            batch=batch, context=10, policy="plain", drafter=None, predicted_tokens_per_s=9.0, interval=(8.0, 10.0),
            measured_tokens_per_s=9.0, plain_tokens_per_s=9.0, machine_speed=pace,
        )
        for batch, pace in enumerate(paces, start=1)
    )  # fmt: skip
    return to_json(Validation(plan_id=plan, rows=rows))


def validated(store: Store, *paces: float | None, device: str = "", target: str = "") -> int:
    """Keep a plan that was validated once, with a row per pace."""
    plan = planned(store, device, target)
    store.add_validation(plan, gauged(plan, *paces))
    return plan


def paces(store: Store) -> tuple[float, ...]:
    return paces_of(store, REQUEST.device.fingerprint, REQUEST.target.key)


def test_a_store_without_validations_tells_none(store: Store) -> None:
    assert paces(store) == ()


def test_each_validation_tells_the_middle_of_its_cells(store: Store) -> None:
    validated(store, 0.8, 0.9, 1.4)
    validated(store, 1.1, None)
    assert list(paces(store)) == pytest.approx([1.1, 0.9])


def test_a_validation_without_a_gauge_tells_nothing(store: Store) -> None:
    validated(store, None)
    assert paces(store) == ()


def test_other_devices_and_other_targets_tell_nothing_of_this_one(store: Store) -> None:
    validated(store, 0.5, device="elsewhere")
    validated(store, 0.5, target="another")
    assert paces(store) == ()


def test_the_newest_validations_count_however_many_plans_were_made_since(store: Store) -> None:
    for place in range(NEWEST + 2):
        validated(store, 1.0 + place)
    for _ in range(NEWEST):
        planned(store)
    assert paces(store) == tuple(1.0 + place for place in reversed(range(2, NEWEST + 2)))


def test_the_newest_validations_of_one_plan_count(store: Store) -> None:
    plan = validated(store, 1.0)
    for place in range(NEWEST + 1):
        store.add_validation(plan, gauged(plan, 2.0 + place))
    assert paces(store) == tuple(2.0 + place for place in reversed(range(1, NEWEST + 1)))


def test_a_validation_that_cannot_be_read_hides_no_other(store: Store) -> None:
    plan = validated(store, 0.9)
    store.add_validation(plan, "{}")
    assert paces(store) == (0.9,)


def kept(store: Store, plan: Plan, device: str = "") -> int:
    """Keep a plan where others of its device lie, and return its id."""
    return store.add_plan(
        plan_to_json(plan), device=device or plan.device.fingerprint, device_kind="kind", target=plan.target.key,
        workload="made up", temperature=0.0,
    )  # fmt: skip


def decoded(plan: Plan, number: int, hour: int, *paces: float, policy: str = "plain", device: str = "") -> str:
    """Return what a decoder saw in an hour: blocks of rounds, each so much faster than promised of plain ones."""
    (cell,) = plan.cells
    seen = CellObservation(
        batch=cell.batch, context=cell.context, is_planned=False, policy=policy, drafter=None, rounds=9, tokens=9,
        kept=(0, 9), draft_ms=0.0, verify_ms=9.0, round_ms=9.0,
        block_tokens_per_s=tuple(pace * cell.plain.tokens_per_s for pace in paces),
    )  # fmt: skip
    moment = f"2026-01-01T{hour:02}:30:00+00:00"
    return to_json(
        Observation(
            plan_id=number, device=device or plan.device.fingerprint, dtype=plan.dtype, source="a test", spectune="0.1",
            began=moment, ended=moment, cells=(seen,),
        )
    )  # fmt: skip


def solved() -> Plan:
    return solve(
        told(), cells_of([1], [10]), created="2026-01-01T00:00:00Z", spectune="0.1", options=SearchOptions(trials=0)
    )


def test_decoders_tell_the_middle_pace_of_each_hour_by_their_plain_rounds(store: Store) -> None:
    plan = solved()
    number = kept(store, plan)
    for document in (
        decoded(plan, number, 9, 0.5, 0.8),
        decoded(plan, number, 9, 0.9),
        decoded(plan, number, 10, 3.0, policy="chain of 3"),  # tells of texts, too
        decoded(plan, number, 11, 1.2),
        decoded(plan, number, 11, 7.0, device="one like it"),
        decoded(plan, number, 12),
        "{}",
    ):
        store.add_observation(number, document)
    assert list(paces_of(store, plan.device.fingerprint, plan.target.key)) == pytest.approx([1.2, 0.8])


def test_validations_come_before_the_hours_of_decoders_and_only_the_newest_of_these_count(store: Store) -> None:
    plan = solved()
    number = kept(store, plan)
    for hour in range(NEWEST + 2):
        store.add_observation(number, decoded(plan, number, hour, 1.0 + hour))
    store.add_validation(number, gauged(number, 0.5))
    expected = [0.5, *(1.0 + hour for hour in reversed(range(2, NEWEST + 2)))]
    assert list(paces_of(store, plan.device.fingerprint, plan.target.key)) == pytest.approx(expected)


def test_decoders_of_a_plan_that_cannot_be_read_tell_nothing(store: Store) -> None:
    plan = solved()
    number = store.add_plan(
        "{}", device=plan.device.fingerprint, device_kind="kind", target=plan.target.key, workload="made up",
        temperature=0.0,
    )  # fmt: skip
    store.add_observation(number, decoded(plan, number, 9, 0.8))
    assert paces_of(store, plan.device.fingerprint, plan.target.key) == ()


def test_a_plan_from_the_store_goes_by_them(store: Store) -> None:
    profile(store, "eager", "small")
    validated(store, 0.8)
    assert inputs_from_store(REQUEST, store).paces == (0.8,)
