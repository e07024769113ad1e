"""The list of a store's surfaces says the same as the surfaces themselves."""

from __future__ import annotations

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url

from ..support.site_store import cells, filled_store, surface_key


def test_every_surface_is_listed_with_its_key_and_its_timings() -> None:
    with filled_store() as store:
        found = {(row.model, row.role, row.regime): row.timings for row in store.surface_rows()}
        whole = {(each.model, each.role, each.regime): len(each.measurements) for each in store.surfaces()}
    assert found == whole


def test_a_cell_timed_again_counts_twice_and_is_the_newest() -> None:
    with SqlStore(resolve_url(":memory:")) as store:
        store.add_measurements(surface_key("verify", "m"), cells())
        (before,) = store.surface_rows()
        store.add_measurements(surface_key("verify", "m"), cells()[:1])
        (after,) = store.surface_rows()
    assert after.timings == before.timings + 1 == len(cells()) + 1
    assert after.newest > before.newest


def test_an_empty_store_has_none() -> None:
    with SqlStore(resolve_url(":memory:")) as store:
        assert store.surface_rows() == []
