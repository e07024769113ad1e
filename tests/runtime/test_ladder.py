"""The ladder on a store in a database: retired plans are not climbed to, and the one promoted last goes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import NoPlanError, StoreAwayError
from spectune.runtime.device_match import Wanted, find_plan

from ..support.filled_service import PLAN, add_plan
from ..support.fresh_store import fresh_store

HALF = replace(PLAN, dtype="bfloat16")  # of numbers of half the bytes


class BrokenStore(SqlStore):
    """A store whose database goes away between the list of plans and the plan."""

    def plan(self, plan_id: int) -> str:
        raise StoreAwayError(f"gone before plan {plan_id}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


def found(store: SqlStore, workload: str | None = None, dtype: str | None = None) -> int:
    wanted = Wanted(
        target=PLAN.target, device=PLAN.device, workload=workload, temperature=PLAN.temperature, dtype=dtype
    )
    return find_plan(store, wanted).plan_id


def test_the_plan_promoted_last_goes_before_newer_ones(store: SqlStore) -> None:
    for _ in range(3):
        add_plan(store, PLAN)
    assert found(store) == 3
    for plan_id in (2, 1):
        store.promote_plan(plan_id, "somebody", "better")
        assert found(store) == plan_id


def test_a_retired_plan_is_never_found(store: SqlStore) -> None:
    for plan_id in (1, 2):
        add_plan(store, PLAN)
        store.promote_plan(plan_id, "somebody", "better")
    store.retire_plan(2, "somebody", "worse")
    assert found(store) == 1
    store.retire_plan(1, "somebody", "worse")
    with pytest.raises(NoPlanError):
        found(store)
    store.restore_plan(1, "somebody", "good after all")
    assert found(store) == 1


def test_the_default_workload_goes_before_a_promoted_plan_of_another(store: SqlStore) -> None:
    default = add_plan(store, replace(PLAN, workload="default"))
    other = add_plan(store, replace(PLAN, workload="other"))
    store.promote_plan(other, "somebody", "better")
    assert (found(store), found(store, "other")) == (default, other)


def test_a_database_that_goes_away_is_no_fault_of_a_plan(store: SqlStore, tmp_path: Path) -> None:
    add_plan(store, PLAN)
    with BrokenStore(resolve_url(str(tmp_path / "store.db"))) as broken, pytest.raises(StoreAwayError):
        found(broken)


def test_a_plan_for_the_wanted_number_format_goes_before_newer_and_promoted_ones(store: SqlStore) -> None:
    half, newer = add_plan(store, HALF), add_plan(store, PLAN)
    assert (found(store), found(store, dtype="bfloat16")) == (newer, half)
    store.promote_plan(newer, "somebody", "better")
    assert (found(store), found(store, dtype="bfloat16")) == (newer, half)


def test_without_one_for_the_wanted_number_format_the_others_stand_as_they_do_anyway(store: SqlStore) -> None:
    numbers = [add_plan(store, PLAN), add_plan(store, PLAN)]
    assert found(store, dtype="bfloat16") == found(store) == numbers[-1]


def test_the_device_itself_counts_more_than_the_number_format(store: SqlStore) -> None:
    own = add_plan(store, PLAN)
    add_plan(store, replace(HALF, device=replace(PLAN.device, driver="1.0")))
    assert found(store, dtype="bfloat16") == own


def test_among_devices_of_a_kind_the_number_format_counts_more_than_the_likeness(store: SqlStore) -> None:
    near = replace(PLAN.device, driver="1.0")
    nearer = add_plan(store, replace(PLAN, device=near))
    farther = add_plan(store, replace(HALF, device=replace(near, threads=1)))
    assert (found(store), found(store, dtype="bfloat16")) == (nearer, farther)
