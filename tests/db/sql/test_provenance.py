"""Plans know what they were computed from, whichever version wrote it; what is only added to is never changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from spectune.db.rows import Records
from spectune.db.sources import PlanSource, content_hash, sources_of_inputs, surface_source
from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import APPEND_ONLY, Base, MeasurementTable
from spectune.db.url import resolve_url
from spectune.errors import StoreError

from ...support import synthetic
from ...support.postgres_server import postgres
from ...support.store_records import SETUP, agreement, cell, overhead, surface, trace

__all__ = ["postgres"]

NOTHING = "0" * 64
OLD = '{"batch":1,"context_tokens":128,"tokens":2,"repeats_ms":[1.0]}'  # as before drift and purpose were fields


@pytest.fixture(params=["file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    is_file = request.param == "file"
    url = str(tmp_path / "store.db") if is_file else request.getfixturevalue("postgres").new_database()
    with SqlStore(resolve_url(url)) as opened:
        yield opened


def fill(store: SqlStore) -> int:
    """Write a row into every table that is only added to, and return the plan's number."""
    store.add_records(Records(surfaces=(surface(cell(1, 1.0)),), traces=(trace(),), overheads=(overhead(0.5),)))
    store.add_pairwise(agreement(10))
    source = surface_source(surface(cell(1, 1.0)), "target")
    plan = store.add_plan("{}", device="device", device_kind="kind", **SETUP, sources=[source])
    store.promote_plan(plan, by="ada", reason="")
    store.add_observation(plan, "{}")
    store.add_validation(plan, "{}")
    return plan


@pytest.mark.thinned
@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("statement", ["UPDATE {table} SET created = 'never'", "DELETE FROM {table}"])
def test_the_database_itself_refuses_changes(store: SqlStore, table: str, statement: str) -> None:
    fill(store)
    with pytest.raises(StoreError, match=f"{table} is append-only"):
        store._write(lambda session: session.execute(text(statement.format(table=table))))


@pytest.mark.thinned
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_no_row_makes_room_for_another_and_no_table_is_emptied(store: SqlStore, table: str) -> None:
    fill(store)
    over = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"
    with pytest.raises(StoreError, match=r"spectune_[a-z_]+ is append-only"):
        store._write(lambda session: session.execute(text(f"TRUNCATE {table} CASCADE" if store.is_server else over)))


@pytest.mark.parametrize("table", ["spectune_surface", "spectune_manifest"])
def test_no_row_makes_room_for_another_of_its_key(tmp_path: Path, table: str) -> None:
    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store:
        fill(store)
        names = ", ".join(column.name for column in Base.metadata.tables[table].columns if column.name != "id")
        over = f"INSERT OR REPLACE INTO {table} (id, {names}) SELECT id + 100, {names} FROM {table}"
        with pytest.raises(StoreError, match=f"{table} is append-only"):
            store._write(lambda session: session.execute(text(over)))


def test_a_measurement_that_an_older_version_wrote_is_known_as_a_plan_s_source(store: SqlStore) -> None:
    fill(store)
    row = MeasurementTable(surface_id=1, batch=1, context_tokens=128, tokens=2, document=OLD)
    store._write(lambda session: session.add(row))
    source = surface_source(store.surfaces()[0], "target")
    plan = store.add_plan("{}", device="device", device_kind="kind", **SETUP, sources=[source])
    (kept,) = store.plan_sources(plan)
    assert kept.is_held
    assert kept.manifest is not None
    assert content_hash(OLD) in kept.manifest


def test_a_whole_plan_s_inputs_are_its_sources() -> None:
    spoken = synthetic.Language(3)
    texts = synthetic.texts(spoken, 4, lambda number: 10)
    recorded = synthetic.record(synthetic.SkilledDrafter(spoken, 0.8), texts, synthetic.every_node(2, 2))
    found = sources_of_inputs(synthetic.inputs(recorded))
    name = recorded.drafter_name
    assert [(each.kind, each.name) for each in found] == [
        ("surface", "target"),
        ("surface", name),
        ("overhead", "host time"),
        ("trace", name),
    ]


def test_how_long_prompts_take_to_read_is_a_source_of_a_plan() -> None:
    spoken = synthetic.Language(3)
    texts = synthetic.texts(spoken, 4, lambda number: 10)
    recorded = synthetic.record(synthetic.SkilledDrafter(spoken, 0.8), texts, synthetic.every_node(2, 2))
    reading = synthetic.surface("large", "read", lambda batch, context, tokens: 9.0)
    found = sources_of_inputs(replace(synthetic.inputs(recorded), readings={reading.model: reading}))
    assert surface_source(reading, "target reading") in found


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"kind": "guess"}, "'guess'; use one of"),
        ({"content_hash": "0" * 63}, "is no hash"),
        ({"kind": "surface"}, "a surface needs one"),
        ({"manifest": "{}"}, "other sources have none"),
        ({"kind": "surface", "manifest": "{}"}, "does not have the hash"),
        ({"name": "x" * 121}, "121 characters"),
    ],
)
def test_a_source_that_cannot_be_is_refused(facts: dict[str, str], fault: str) -> None:
    with pytest.raises(StoreError, match=fault):
        PlanSource(**{"kind": "trace", "content_hash": NOTHING, **facts})  # type: ignore[arg-type]
