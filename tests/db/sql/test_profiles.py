"""Profiles under way: what is written down outlives the writer, is never doubled, and is dropped when done with."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from spectune.db import Store, open_store
from spectune.errors import StoreError
from spectune.profiler.protocols import Journal
from spectune.profiler.records.visit import Visit

from ...support.journal_records import FAILED, VISIT

KILLED_WRITER = """
import os, signal, sys
from spectune.db import open_store
from spectune.profiler.records.visit import Visit

journal = open_store(sys.argv[1]).open_profile("key")
for ordinal in range(int(sys.argv[2])):
    visit = Visit(ordinal=ordinal, surface=0, batch=1, context_tokens=0, tokens=1, purpose="design", round=ordinal,
                  spent_s=0.5, ms=1.0 + ordinal)
    journal.add_visit(visit)
os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_IN_A_TRANSACTION = """
import os, signal, sys
from spectune.db import open_store
from spectune.db.sql.tables import PartTable, VisitTable

store = open_store(sys.argv[1])
journal = store.open_profile("key")
with store._writing() as session:
    session.add(PartTable(profile_id=journal.profile_id, name="half", document="document"))
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db") if request.param == "file" else "sqlite://") as opened:
        yield opened


def numbered(ordinal: int) -> Visit:
    return replace(VISIT, ordinal=ordinal)


def run_until_killed(code: str, *arguments: str) -> None:
    died = subprocess.run([sys.executable, "-c", code, *arguments], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL


def count(file: Path, table: str) -> int:
    with sqlite3.connect(file) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM spectune_{table}").fetchone()
    connection.close()
    return int(rows)


class TestOpening:
    def test_a_first_profile_is_not_resumed(self, store: Store) -> None:
        journal = store.open_profile("key")
        assert not journal.is_resumed
        assert journal.visits() == []

    def test_an_unfinished_profile_is_resumed(self, store: Store) -> None:
        first = store.open_profile("key")
        again = store.open_profile("key")
        assert again.is_resumed
        assert again.profile_id == first.profile_id

    def test_a_profile_of_another_key_is_not_resumed(self, store: Store) -> None:
        store.open_profile("key").add_visit(VISIT)
        other = store.open_profile("other")
        assert not other.is_resumed
        assert other.visits() == []

    def test_a_finished_profile_is_not_resumed(self, store: Store) -> None:
        store.open_profile("key").finish()
        assert not store.open_profile("key").is_resumed

    def test_a_fresh_profile_starts_empty(self, store: Store) -> None:
        old = store.open_profile("key")
        old.add_visit(VISIT)
        old.add_part("name", "document")
        fresh = store.open_profile("key", fresh=True)
        assert not fresh.is_resumed
        assert (fresh.visits(), fresh.part("name")) == ([], None)

    def test_a_fresh_profile_is_the_one_resumed_later(self, store: Store) -> None:
        store.open_profile("key").add_visit(VISIT)
        store.open_profile("key", fresh=True).add_visit(FAILED)
        assert store.open_profile("key").visits() == [FAILED]

    def test_abandoning_and_finishing_leave_profiles_of_other_keys(self, store: Store) -> None:
        other = store.open_profile("other")
        other.add_visit(VISIT)
        other.add_part("name", "document")
        store.open_profile("key").add_visit(FAILED)
        store.open_profile("key", fresh=True).finish()
        assert (other.visits(), other.part("name")) == ([VISIT], "document")

    def test_abandoned_visits_and_parts_are_dropped(self, tmp_path: Path) -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            old = store.open_profile("key")
            old.add_visit(VISIT)
            old.add_part("name", "document")
            store.open_profile("key", fresh=True)
        assert [count(tmp_path / "store.db", table) for table in ("profile", "visit", "part")] == [2, 0, 0]

    def test_an_abandoned_profile_refuses_visits(self, store: Store) -> None:
        old = store.open_profile("key")
        store.open_profile("key", fresh=True)
        with pytest.raises(StoreError, match=r"profile 1 in .* is abandoned and takes nothing more; start the command"):
            old.add_visit(VISIT)


class TestVisits:
    def test_a_journal_is_what_a_profile_asks_for(self, store: Store) -> None:
        journal: Journal = store.open_profile("key")
        journal.add_visit(VISIT)
        assert journal.visits() == [VISIT]

    def test_a_failed_visit_comes_back(self, store: Store) -> None:
        journal = store.open_profile("key")
        journal.add_visit(FAILED)
        assert journal.visits() == [FAILED]

    def test_a_resumed_profile_returns_its_visits_by_ordinal(self, store: Store) -> None:
        for ordinal in (2, 0, 1):
            store.open_profile("key").add_visit(numbered(ordinal))
        assert store.open_profile("key").visits() == [numbered(ordinal) for ordinal in range(3)]

    def test_an_ordinal_is_taken_once(self, store: Store) -> None:
        first, second = store.open_profile("key"), store.open_profile("key")
        first.add_visit(VISIT)
        with pytest.raises(StoreError, match=r"visit 0 of profile 1 in .* is already there: another process runs"):
            second.add_visit(replace(VISIT, ms=9.0))
        assert first.visits() == [VISIT]

    def test_two_threads_that_run_one_profile_double_nothing(self, store: Store) -> None:
        def added(ordinal: int) -> bool:
            try:
                store.open_profile("key").add_visit(numbered(ordinal))
            except StoreError:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            kept = list(threads.map(added, [*range(20), *range(20)]))
        assert kept.count(True) == 20
        assert [visit.ordinal for visit in store.open_profile("key").visits()] == list(range(20))

    def test_a_visit_waits_while_another_program_writes_for_long(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spectune.db.sql.engines.BUSY_TIMEOUT_S", 0.02)
        with open_store(str(tmp_path / "store.db")) as store:
            journal = store.open_profile("key")
            other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            Timer(0.4, other.close).start()  # which rolls back
            journal.add_visit(VISIT)
            assert journal.visits() == [VISIT]

    def test_who_profiles_nothing_waits_for_another_program_no_longer_than_its_turn(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spectune.db.sql.engines.BUSY_TIMEOUT_S", 0.02)
        with open_store(str(tmp_path / "store.db")) as store, closing(sqlite3.connect(tmp_path / "store.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another program is writing for long"):
                store.open_profile("key")

    def test_a_damaged_visit_is_refused(self, tmp_path: Path) -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            journal = store.open_profile("key")
            journal.add_visit(VISIT)
            with sqlite3.connect(tmp_path / "store.db") as connection:
                connection.execute("UPDATE spectune_visit SET ms = -1.0")
            connection.close()
            with pytest.raises(StoreError, match=r"a visit of profile 1 in .* was damaged.*--fresh"):
                journal.visits()

    def test_others_may_write_between_two_visits(self, tmp_path: Path) -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            journal = store.open_profile("key")
            journal.add_visit(VISIT)
            with sqlite3.connect(tmp_path / "store.db", timeout=0.0) as connection:
                connection.execute("BEGIN IMMEDIATE")
            connection.close()
            journal.add_visit(FAILED)
            assert journal.visits() == [VISIT, FAILED]


class TestKilledWriters:
    def test_every_visit_whose_call_returned_is_there(self, tmp_path: Path) -> None:
        run_until_killed(KILLED_WRITER, str(tmp_path / "store.db"), "100")
        with open_store(str(tmp_path / "store.db")) as store:
            journal = store.open_profile("key")
            assert journal.is_resumed
            assert [visit.ms for visit in journal.visits()] == [1.0 + ordinal for ordinal in range(100)]

    def test_a_write_cut_short_is_not_there(self, tmp_path: Path) -> None:
        run_until_killed(KILLED_IN_A_TRANSACTION, str(tmp_path / "store.db"))
        with open_store(str(tmp_path / "store.db")) as store:
            assert store.open_profile("key").part("half") is None

    def test_a_killed_writer_leaves_the_file_sound_and_unlocked(self, tmp_path: Path) -> None:
        run_until_killed(KILLED_IN_A_TRANSACTION, str(tmp_path / "store.db"))
        with sqlite3.connect(tmp_path / "store.db", timeout=0.0) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.execute("BEGIN IMMEDIATE")
        connection.close()


class TestParts:
    def test_a_part_comes_back_byte_for_byte_after_resuming(self, store: Store) -> None:
        text = '{ "ü" :\t1.0,\n "x":[ ] }'
        store.open_profile("key").add_part("name", text)
        assert store.open_profile("key").part("name") == text

    def test_a_missing_part_is_none(self, store: Store) -> None:
        store.open_profile("other").add_part("name", "document")
        journal = store.open_profile("key")
        journal.add_part("another name", "document")
        assert journal.part("name") is None

    def test_a_name_is_taken_once(self, store: Store) -> None:
        journal = store.open_profile("key")
        journal.add_part("name", "first")
        with pytest.raises(StoreError, match=r"part 'name' of profile 1 in .* is already there"):
            journal.add_part("name", "second")
        assert journal.part("name") == "first"
