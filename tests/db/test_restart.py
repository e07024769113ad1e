"""A PostgreSQL that goes away is waited for; a write whose end nobody saw is kept once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from spectune.db.sql import engines as postgres_module
from spectune.db.sql.engines import wait_for_turn
from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import MeasurementTable, WriteTable
from spectune.db.url import resolve_url
from spectune.errors import StoreAwayError, StoreError

from ..support.postgres_server import PostgresServer, postgres
from ..support.store_records import SETUP, SURFACE, cell

__all__ = ["postgres"]


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[SqlStore]:
    with SqlStore(resolve_url(postgres.new_database())) as opened:
        yield opened


def rows(store: SqlStore) -> int:
    return store._read(lambda session: session.scalar(select(func.count()).select_from(MeasurementTable)) or 0)


def end_own_connection(session: Session) -> None:
    """Have the server end the connection of a transaction, as a restart does."""
    session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


@pytest.mark.parametrize(
    ("before_a_write", "before_a_read"),
    [("immediate", "fast"), pytest.param("fast", "immediate", marks=pytest.mark.slow)],
)
def test_a_restarted_server_is_found_again(
    store: SqlStore, postgres: PostgresServer, before_a_write: str, before_a_read: str
) -> None:
    store.add_measurements(SURFACE, [cell(1, 1.0)])
    postgres.restart(before_a_write)
    store.add_measurements(SURFACE, [cell(2, 2.0)])
    postgres.restart(before_a_read)
    assert [measurement.tokens for measurement in store.surfaces()[0].measurements] == [1, 2]


def test_a_write_whose_connection_breaks_before_its_end_is_made_again(store: SqlStore) -> None:
    attempts = []

    def work(session: Session) -> int:
        attempts.append(session)
        if len(attempts) == 1:
            end_own_connection(session)
        return len(attempts)

    assert store._write(work) == 2


def test_a_write_that_was_kept_unseen_is_not_made_again(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first COMMIT reaches the server, its answer is lost."""
    lost: list[object] = []
    dialect = store._writer.dialect
    original = dialect.do_commit

    def committed_but_unheard(connection: Any) -> None:
        original(connection)
        if not lost:
            lost.append(connection)
            raise OperationalError("COMMIT", {}, Exception("connection lost"), connection_invalidated=True)

    monkeypatch.setattr(dialect, "do_commit", committed_but_unheard)
    store.add_measurements(SURFACE, [cell(1, 1.0)])
    assert (len(lost), rows(store)) == (1, 1)


def test_a_server_that_stays_away_is_given_up(store: SqlStore) -> None:
    store.patience_s = 0.2
    with pytest.raises(StoreAwayError):
        store._write(end_own_connection)
    with pytest.raises(StoreAwayError):
        store._read(end_own_connection)


def test_what_is_wrong_with_a_write_is_said_at_once(store: SqlStore) -> None:
    with pytest.raises(StoreError) as refused:
        store._write(lambda session: session.execute(text("SELECT 1 FROM nowhere")))
    assert not isinstance(refused.value, StoreAwayError)


def test_two_that_lock_each_other_both_end(store: SqlStore) -> None:
    def add(first: str, second: str) -> None:
        def work(session: Session) -> None:
            for number in (first, second):
                session.execute(text(f"SELECT pg_advisory_xact_lock({number})"))
                session.execute(text("SELECT pg_sleep(0.2)"))

        store._write(work)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add, "1", "2"), threads.submit(add, "2", "1")]:
            done.result(timeout=60)


def test_plans_that_are_added_at_once_have_versions_of_their_own(store: SqlStore) -> None:
    def add(number: int) -> int:
        return store.add_plan(str(number), device="device", device_kind="kind", **SETUP)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(24)))
    assert sorted(row.version for row in store.plans()) == list(range(1, 25))


def test_whoever_changes_a_plan_s_state_waits_for_who_looks_which_plan_counts(store: SqlStore) -> None:
    plan_id, other = (store.add_plan(text, device="device", device_kind="kind", **SETUP) for text in ("1", "2"))
    with ThreadPoolExecutor(2) as threads:
        with store.transaction() as session:  # as a rollback does
            wait_for_turn(session, "plans", "device", SETUP["target"], SETUP["workload"])
            changes = [
                threads.submit(store.promote_plan, plan_id, "ada", ""),
                threads.submit(store.retire_plan, other, "ada", ""),
            ]
            while not any(change.done() for change in changes) and waiting(store) < len(changes):
                pass
            assert not any(change.done() for change in changes)
        for change in changes:
            change.result(timeout=60)
    assert [row.state for row in store.plans()] == ["promoted", "retired"]


def waiting(store: SqlStore) -> int:
    """Return how many connections to the database wait for a turn."""
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return store._read(lambda session: session.scalar(text(query)) or 0)


def test_a_profile_that_is_opened_at_once_is_begun_once(store: SqlStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        numbers = set(threads.map(lambda _: store.open_profile("key").profile_id, range(16)))
    assert len(numbers) == 1


def test_keys_of_old_writes_are_forgotten(store: SqlStore, postgres: PostgresServer) -> None:
    store.add_measurements(SURFACE, [cell(1, 1.0)])
    old = "UPDATE spectune_write SET created = '2025-01-01T00:00:00.000000+00:00'"
    store._write(lambda session: session.execute(text(old.replace(":", r"\:"))))
    with SqlStore(store._url) as again:
        left = again._read(lambda session: list(session.scalars(select(WriteTable.created))))
    assert all(moment > "2025-01-02" for moment in left)


def test_a_server_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres_module.NOTICE, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as threads:
        url = resolve_url(f"postgresql+psycopg://127.0.0.1:{silent.getsockname()[1]}/x")
        with pytest.raises(StoreError, match="timeout"):
            threads.submit(SqlStore, url).result(timeout=60)


def test_a_client_that_stops_inside_a_transaction_loses_its_turn(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_module.SESSION, "idle_in_transaction_session_timeout", 200)
    url = resolve_url(postgres.new_database())
    with SqlStore(url) as stopped, SqlStore(url) as other, pytest.raises(StoreError, match="idle-in-transaction"):
        stop_while_another_adds(stopped, other)


def stop_while_another_adds(stopped: SqlStore, other: SqlStore) -> None:
    with stopped.transaction() as session, ThreadPoolExecutor(1) as threads:
        wait_for_turn(session, "plans", "device", SETUP["target"], SETUP["workload"])
        adding = threads.submit(other.add_plan, "1", device="device", device_kind="kind", **SETUP)
        assert adding.result(timeout=60) == 1
        session.execute(text("SELECT 1"))


def test_what_the_url_says_of_timeouts_goes_first(postgres: PostgresServer) -> None:
    url = resolve_url(postgres.new_database()).update_query_dict({"connect_timeout": "7"})
    with SqlStore(url) as store, store._reader.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        told = driver.info.get_parameters()
    assert (told["connect_timeout"], told["tcp_user_timeout"], told["keepalives_idle"]) == ("7", "10000", "5")
