"""Setups and the newest plans are found without reading every plan, and say the same as all plans do."""

from __future__ import annotations

import pytest

from spectune.db.sql.news import newest_plans, setup_rows
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url

from ..support.site_store import NASTY_DEVICE, WORKLOAD, add_plan, filled_store, nasty_plan


def test_every_setup_is_listed_with_its_newest_plan_and_their_number() -> None:
    with filled_store() as store:
        other = add_plan(store, nasty_plan(2.0, workload="another"))
        found = [(row.workload, row.newest, row.plans) for row in setup_rows(store)]
    assert found == [("another", other, 1), (WORKLOAD, 2, 2)]


@pytest.mark.parametrize("most", [1, 2, 9])
def test_the_newest_plans_are_the_last_of_all(most: int) -> None:
    with filled_store() as store:
        add_plan(store, nasty_plan(2.0, workload="another"))
        assert newest_plans(store, most) == store.plans()[::-1][:most]


def test_plans_of_other_devices_may_be_left_out() -> None:
    with filled_store() as store:
        assert len(newest_plans(store, 9, (NASTY_DEVICE.fingerprint,))) == 2
        assert newest_plans(store, 9, ("another",)) == []


def test_an_empty_store_has_neither() -> None:
    with SqlStore(resolve_url(":memory:")) as store:
        assert (setup_rows(store), newest_plans(store, 9)) == ([], [])
