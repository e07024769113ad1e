"""A backup is the store at one moment, made while others write, and never in place of an older one."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from spectune.db.exchange.backup import back_up
from spectune.db.exchange.check import faults_of
from spectune.db.exchange.records import everything
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import StoreError

from ...support.postgres_server import PostgresServer, postgres
from ...support.store_records import SURFACE, cell, trace

__all__ = ["postgres"]


def test_a_backup_is_a_store_like_the_one_it_was_made_of(tmp_path: Path) -> None:
    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        store.add_trace(trace())
        back_up(store, tmp_path / "folder" / "copy.db")
        with SqlStore(resolve_url(str(tmp_path / "folder" / "copy.db")), upgrade=False) as copy:
            assert list(everything(copy)) == list(everything(store))
            assert list(faults_of(copy)) == []


def test_a_backup_made_while_others_write_holds_a_beginning_of_what_they_wrote(tmp_path: Path) -> None:
    store = SqlStore(resolve_url(str(tmp_path / "store.db")))
    enough = threading.Event()

    def write() -> None:
        for tokens in range(1, 101):
            store.add_measurements(SURFACE, [cell(tokens, 1.0)])
            if tokens == 20:
                enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    enough.wait(60)
    back_up(store, tmp_path / "copy.db")
    writer.join()
    store.close()
    with SqlStore(resolve_url(str(tmp_path / "copy.db"))) as copy:
        kept = [measurement.tokens for measurement in copy.surfaces()[0].measurements]
    assert 20 <= len(kept) <= 100
    assert kept == list(range(1, len(kept) + 1))


def test_a_backup_in_memory_s_place_is_made_too(tmp_path: Path) -> None:
    with SqlStore(resolve_url("sqlite://")) as store:
        store.add_trace(trace())
        back_up(store, tmp_path / "copy.db")
    with SqlStore(resolve_url(str(tmp_path / "copy.db"))) as copy:
        assert copy.trace(1) == trace()


def test_an_older_backup_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with SqlStore(resolve_url("sqlite://")) as store, pytest.raises(StoreError, match="is there already"):
        back_up(store, tmp_path / "copy.db")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("copy.db", "mine")]


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_disk_without_hard_links_keeps_a_backup_too_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    copy = tmp_path / "copy.db"

    def no_links(*_: object) -> None:
        if is_taken:
            copy.write_text("another's")
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    with SqlStore(resolve_url("sqlite://")) as store:
        store.add_trace(trace())
        if is_taken:
            with pytest.raises(StoreError, match="cannot back up to"):
                back_up(store, copy)
            assert copy.read_text() == "another's"
        else:
            back_up(store, copy)
            with SqlStore(resolve_url(str(copy))) as kept:
                assert kept.trace(1) == trace()
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with SqlStore(resolve_url("sqlite://")) as store, pytest.raises(StoreError, match="cannot back up to"):
        back_up(store, tmp_path / "file" / "copy.db")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_server_is_backed_up_by_its_own_tools(postgres: PostgresServer, tmp_path: Path) -> None:
    with SqlStore(resolve_url(postgres.new_database())) as store, pytest.raises(StoreError, match="pg_dump"):
        back_up(store, tmp_path / "copy")
