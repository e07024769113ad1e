"""What a store remembers of a device's pace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.planner.plans.validation import Validation, ValidationRow
from spectune.profiler.records.wire import to_json
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.paces import NEWEST, paces_of

from .test_tuning_one_regime import REQUEST, profile


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


def test_a_plan_from_the_store_goes_by_them(store: Store) -> None:
    profile(store, "eager", "small")
    validated(store, 0.8)
    assert inputs_from_store(REQUEST, store).paces == (0.8,)
