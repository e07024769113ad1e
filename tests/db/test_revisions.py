"""Every released schema, with data in it, is brought up to date and back, on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from spectune.db.exchange.check import faults_of
from spectune.db.sql.engines import sqlite_engine
from spectune.db.sql.migrate import HEAD, VERSION_TABLE, migration_config, stored_versions
from spectune.db.sql.service_tables import Base
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import StoreError
from spectune.profiler.records.wire import to_json

from ..support.postgres_server import postgres
from ..support.store_records import DEVICE, MODEL, SETUP, agreement, cell, overhead, trace

__all__ = ["postgres"]

RELEASED = ("0001", "0002", "0003", "0004")
NOW = "2025-12-31T12:00:00.000000+00:00"
CELL, TRACE, OVERHEAD, AGREEMENT = map(to_json, (cell(1, 1.0), trace(), overhead(0.5), agreement(10)))
NAMES_HASH = hashlib.sha256(b'["large", "small"]').hexdigest()


def digest(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest()


Rows = dict[str, dict[str, Any]]
FIRST: Rows = {  # one row of every table of the first schema, as that version wrote it
    "device": {"fingerprint": DEVICE.fingerprint, "kind_key": DEVICE.kind_key, "document": to_json(DEVICE)},
    "model": {"key": MODEL.key, "document": to_json(MODEL)},
    "surface": {"device": "device", "model": "model", "role": "verify", "regime": "eager", "dtype": "float32"},
    "measurement": {"surface_id": 1, "batch": 1, "context_tokens": 128, "tokens": 1, "document": CELL},
    "overhead": {"device": "device", "target": "target", "dtype": "float32", "document": OVERHEAD},
    "trace": {"target": "target", "drafter": "drafter", "workload": "chat", "temperature": 0.7, "document": TRACE},
    "pairwise": {"names_hash": NAMES_HASH, "document": AGREEMENT},
    "plan": {"version": 1, "device": "device", "device_kind": "kind", **SETUP, "document": "{}"}
    | {"content_hash": digest("{}")},
    "observation": {"plan_id": 1, "document": "seen"},
    "validation": {"plan_id": 1, "document": "found"},
}
SECOND: Rows = {"profile": {"key": "key", "state": "open"}, "part": {"profile_id": 1, "name": "n", "document": "d"}}
THIRD: Rows = {
    "plan_event": {"plan_id": 1, "action": "promoted", "by": "ada", "reason": "faster"},
    "plan_source": {"plan_id": 1, "kind": "trace", "content_hash": digest(TRACE), "name": "small", "is_held": True},
}
FOURTH: Rows = {
    "token": {"name": "ci", "hash": digest("spt_"), "scope": "write"},
    "receipt": {"key": digest("key"), "token_name": "ci", "digest": digest("body"), "status": 201, "body": "{}"},
    "upload": {"key": "key", "token_name": "ci", "kind": "plan", "target": "POST /v1/plans", "size": 2}
    | {"sha256": digest("{}"), "received": 0, "touched": NOW},
    "job": {"key": "key", "kind": "plan", "state": "queued", "request": "{}", "token_name": "ci"}
    | {"progress": 0.0, "note": "", "attempts": 0},
}
HASHED = ("measurement", "overhead", "trace", "pairwise")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    found: str = request.getfixturevalue("postgres").new_database(is_empty=True)
    return found


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    opened = sqlite_engine(resolve_url(url)) if url.startswith("sqlite") else create_engine(url)
    yield opened
    opened.dispose()


def rows_of(version: str) -> Rows:
    """Return the rows that a store of a schema holds in these tests."""
    rows = FIRST if version == "0001" else FIRST | SECOND
    if version < "0003":
        return rows
    hashed = {name: {**rows[name], "content_hash": digest(rows[name]["document"])} for name in HASHED}
    return rows | hashed | THIRD | (FOURTH if version >= "0004" else {})


def write_store(engine: Engine, version: str) -> None:
    """Write a store as the version of spectune that had this schema left it."""
    with engine.begin() as connection:
        command.upgrade(migration_config(connection), version)
        for name, row in rows_of(version).items():
            columns = {**row, "created": NOW}
            names, places = ", ".join(f'"{each}"' for each in columns), ", ".join(f":{each}" for each in columns)
            connection.execute(text(f"INSERT INTO spectune_{name} ({names}) VALUES ({places})"), columns)


def contents(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table of ours that has any."""
    names = [name for name in inspect(connection).get_table_names() if name.startswith("spectune_")]
    found = {name: connection.execute(text(f"SELECT * FROM {name}")).mappings().all() for name in sorted(names)}
    return {name: [dict(row) for row in rows] for name, rows in found.items() if rows and name != VERSION_TABLE}


def schema(connection: Connection) -> dict[str, object]:
    """Return the columns and indexes of every table of ours."""
    looked = inspect(connection)
    names = sorted(name for name in looked.get_table_names() if name.startswith("spectune_"))
    columns = {name: {(c["name"], str(c["type"]), c["nullable"]) for c in looked.get_columns(name)} for name in names}
    indexes = {name: {(i["name"], tuple(i["column_names"])) for i in looked.get_indexes(name)} for name in names}
    return {"columns": columns, "indexes": indexes}


def move(engine: Engine, version: str) -> None:
    with engine.begin() as connection:
        is_up = stored_versions(connection)[0] < version
        (command.upgrade if is_up else command.downgrade)(migration_config(connection), version)


@pytest.mark.parametrize("version", RELEASED)
def test_a_store_of_every_released_schema_is_sound_once_it_is_opened(engine: Engine, url: str, version: str) -> None:
    write_store(engine, version)
    with SqlStore(resolve_url(url)) as store:
        assert list(faults_of(store)) == []
        assert (store.devices(), store.models(), store.trace(1)) == ([DEVICE], [MODEL], trace())
        assert (store.surfaces()[0].measurements, store.overhead("device", "target", "float32")) == (
            (cell(1, 1.0),),
            overhead(0.5),
        )
        assert store.plan(store.find_plan(device="device", **SETUP).id) == "{}"
        assert store.observations(1) == ["seen"]
        assert store.pairwise(["small", "large"]) == agreement(10)


@pytest.mark.parametrize("version", RELEASED)
def test_an_upgrade_hashes_every_document(engine: Engine, url: str, version: str) -> None:
    write_store(engine, version)
    SqlStore(resolve_url(url)).close()
    with engine.begin() as connection:
        for name in HASHED:
            found = connection.execute(text(f"SELECT document, content_hash FROM spectune_{name}")).all()
            assert [seen for _, seen in found] == [digest(document) for document, _ in found]


@pytest.mark.parametrize("version", RELEASED)
def test_up_and_down_again_leaves_a_schema_and_its_rows_as_they_were(engine: Engine, version: str) -> None:
    write_store(engine, version)
    with engine.begin() as connection:
        before, rows = schema(connection), contents(connection)
    move(engine, HEAD)
    move(engine, version)
    with engine.begin() as connection:
        assert (schema(connection), contents(connection)) == (before, rows)


@pytest.mark.parametrize("version", RELEASED)
def test_an_upgraded_schema_equals_the_models(engine: Engine, version: str) -> None:
    write_store(engine, version)
    move(engine, HEAD)
    with engine.begin() as connection:
        options = {"version_table": VERSION_TABLE, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert list(compare_metadata(context, Base.metadata)) == []


def test_everything_is_taken_down_to_nothing(engine: Engine) -> None:
    write_store(engine, "0003")
    move(engine, HEAD)
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "base")
        assert inspect(connection).get_table_names() == [VERSION_TABLE]


def test_a_downgrade_below_the_third_schema_forgets_events_and_sources_and_nothing_else(engine: Engine) -> None:
    write_store(engine, "0003")
    move(engine, "0002")
    with engine.begin() as connection:
        left = contents(connection)
    assert set(left) == {f"spectune_{name}" for name in FIRST | SECOND}
    assert left["spectune_measurement"][0]["document"] == CELL


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_an_older_store_is_not_changed_by_who_only_reads_it(engine: Engine, url: str, version: str) -> None:
    write_store(engine, version)
    with pytest.raises(StoreError, match=f"has schema {version}, .*; run: spectune db upgrade"):
        SqlStore(resolve_url(url), upgrade=False)
    with engine.begin() as connection:
        assert stored_versions(connection) == (version,)
