"""A sound store has no fault, and each planted fault is found and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from spectune.db.exchange.check import faults_of
from spectune.db.sources import overhead_source, surface_source, trace_source
from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import DoorTable
from spectune.db.url import resolve_url

from ...support.postgres_server import postgres
from ...support.store_records import DEVICE, MODEL, SETUP, SURFACE, VISIT, agreement, cell, overhead, surface, trace

__all__ = ["postgres"]

HASH = b"the hash of nothing".hex().ljust(64, "0")
PLANTED = [  # what somebody did to the store -> what is said of it
    ("UPDATE spectune_measurement SET document = document || ' ' WHERE id = 1", "no longer has its hash"),
    ("UPDATE spectune_plan SET document = '[]'", "no longer has its hash"),
    ("UPDATE spectune_measurement SET tokens = 7 WHERE id = 1", "its tokens is not what its text says"),
    ("UPDATE spectune_trace SET drafter = 'other'", "its drafter is not what its text says"),
    ("UPDATE spectune_device SET fingerprint = 'other'", "its fingerprint is not what its text says"),
    ("UPDATE spectune_model SET document = '{}'", "its text is no such record"),
    ("DELETE FROM spectune_measurement WHERE id = 2", "cells it names are gone"),
    ("DELETE FROM spectune_trace", "its trace 'the drafter' is gone"),
    ("UPDATE spectune_profile SET state = 'finished'", "it is closed and has rows in spectune_visit"),
    ("UPDATE spectune_plan SET version = 1", "two of them are version 1"),
    ("DROP INDEX ix_spectune_trace", "add_index would be needed"),
]


@pytest.fixture(params=["file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    is_file = request.param == "file"
    url = str(tmp_path / "store.db") if is_file else request.getfixturevalue("postgres").new_database()
    with SqlStore(resolve_url(url)) as opened:
        fill(opened)
        yield opened


def fill(store: SqlStore) -> None:
    store.add_device(DEVICE)
    store.add_model(MODEL)
    store.add_measurements(SURFACE, [cell(1, 1.0), cell(2, 2.0)])
    store.add_trace(trace())
    store.add_overhead(overhead(0.5))
    store.add_pairwise(agreement(10))
    store.open_profile("key").add_visit(VISIT)
    sources = [surface_source(surface(cell(1, 1.0), cell(2, 2.0)), "t"), trace_source(trace())]
    for text_of_plan in ("{}", "{ }"):
        store.add_plan(text_of_plan, device="device", device_kind="kind", **SETUP, sources=sources)


def plant(store: SqlStore, statement: str) -> None:
    """Change a store behind its back: through the door that only a prune opens."""

    def work(session: Session) -> None:
        session.add(DoorTable())
        session.flush()
        session.execute(text(statement))
        session.execute(text("DELETE FROM spectune_door"))

    store._write(work)


def said(store: SqlStore) -> list[str]:
    return [fault.what for fault in faults_of(store)]


def test_a_sound_store_has_no_fault(store: SqlStore) -> None:
    assert said(store) == []


@pytest.mark.parametrize(("statement", "fault"), PLANTED)
def test_a_planted_fault_is_found(store: SqlStore, statement: str, fault: str) -> None:
    plant(store, statement)
    assert any(fault in line for line in said(store))


def test_every_fault_is_listed(store: SqlStore) -> None:
    for statement, _ in PLANTED[:6]:
        plant(store, statement)
    places = {fault.place for fault in faults_of(store)}
    assert {"row 1 of spectune_measurement", "row 1 of spectune_trace", "row 1 of spectune_device"} <= places


def test_a_source_that_was_never_here_is_no_fault(store: SqlStore) -> None:
    store.add_plan("[]", device="other", device_kind="kind", **SETUP, sources=[overhead_source(overhead(9.0))])
    assert said(store) == []


def test_a_table_that_lost_its_lock_is_a_fault(store: SqlStore) -> None:
    on = "" if not store.is_server else " ON spectune_plan"
    plant(store, f"DROP TRIGGER spectune_plan_no_delete{on}")
    assert said(store) == ["its lock against delete is gone; restore a backup"]
    other = "truncate" if store.is_server else "replace"
    plant(store, f"DROP TRIGGER spectune_plan_no_{other}{on}")
    assert f"its lock against {other} is gone; restore a backup" in said(store)


def test_a_door_left_open_is_a_fault(store: SqlStore) -> None:
    store._write(lambda session: session.add(DoorTable()))
    assert [fault.place for fault in faults_of(store)] == ["spectune_door"]


def test_a_row_that_points_nowhere_is_a_fault(tmp_path: Path) -> None:
    import sqlite3

    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store:
        fill(store)
        with sqlite3.connect(tmp_path / "store.db") as connection:  # foreign keys are off here
            connection.execute("INSERT INTO spectune_observation VALUES (1, 9, '{}', '2026')")
        assert said(store) == ["plan_id points nowhere"]
