"""A profile whose journal is kept by a service: nothing is lost with a process or a connection, nothing doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from spectune.db.remote.journal import BATCH_S, BATCH_VISITS
from spectune.db.remote.remote_store import RemoteStore
from spectune.db.url import TOKEN_VARIABLE, service_url
from spectune.errors import StoreError
from spectune.profiler.protocols import Journal
from spectune.profiler.records.visit import Visit

from ...support.faulty_service import Fault, FaultyService, served
from ...support.journal_records import FAILED, SURFACE, VISIT

KILLED_WRITER = """
import os, signal, sys
from spectune.db import open_store
from spectune.profiler.records.visit import Visit

store = open_store(sys.argv[1])
journal = store.open_profile("key")
for ordinal in range(int(sys.argv[2]), int(sys.argv[3])):
    visit = Visit(ordinal=ordinal, surface=0, batch=1, context_tokens=0, tokens=1, purpose="design", round=ordinal,
                  spent_s=0.5, ms=1.0 + ordinal / 3)
    journal.add_visit(visit)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with served(FaultyService()) as running:
        yield running


class Hand:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def store(service: FaultyService, clock: Hand) -> Iterator[RemoteStore]:
    with RemoteStore(service_url(service.url), sleep=lambda _: None, clock=clock) as opened:
        yield opened


def numbered(ordinal: int) -> Visit:
    return replace(VISIT, ordinal=ordinal, ms=1.0 + ordinal / 3)


def spool(cache: Path) -> Path:
    (file,) = cache.glob("services/*/profiles/*.jsonl")
    return file


def run_until_killed(*arguments: str) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED_WRITER, *arguments], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL


class TestVisits:
    def test_a_remote_journal_is_what_a_profile_asks_for(self, store: RemoteStore) -> None:
        journal: Journal = store.open_profile("key")
        journal.add_visit(VISIT)
        journal.add_visit(FAILED)
        assert journal.visits() == [VISIT, FAILED]

    def test_a_visit_waits_for_no_network(self, service: FaultyService, store: RemoteStore) -> None:
        journal = store.open_profile("key")
        before = len(service.seen)
        for ordinal in range(BATCH_VISITS - 1):
            journal.add_visit(numbered(ordinal))
        assert len(service.seen) == before

    def test_a_full_batch_is_sent_bit_for_bit(self, service: FaultyService, store: RemoteStore) -> None:
        journal = store.open_profile("key")
        for ordinal in range(BATCH_VISITS):
            journal.add_visit(numbered(ordinal))
        assert service.visits == {ordinal: asdict(numbered(ordinal)) for ordinal in range(BATCH_VISITS)}

    def test_a_batch_is_due_after_some_seconds(self, service: FaultyService, store: RemoteStore, clock: Hand) -> None:
        journal = store.open_profile("key")
        journal.add_visit(numbered(0))
        clock.now_s = BATCH_S
        journal.add_visit(numbered(1))
        assert list(service.visits) == [0, 1]

    @pytest.mark.parametrize("fault", ["drop before", "drop after", "cut", 503, 429])
    def test_a_batch_that_meets_a_fault_is_kept_once(
        self, service: FaultyService, store: RemoteStore, clock: Hand, fault: Fault
    ) -> None:
        journal = store.open_profile("key")
        service.faults["POST"].append(fault)
        for ordinal in range(6):
            clock.now_s += BATCH_S * 2
            journal.add_visit(numbered(ordinal))
        assert list(service.visits) == list(range(6))
        assert journal.visits() == [numbered(ordinal) for ordinal in range(6)]

    def test_pauses_grow_while_the_service_is_away(
        self, service: FaultyService, store: RemoteStore, clock: Hand
    ) -> None:
        journal = store.open_profile("key")
        service.faults["POST"].extend([503] * 100)
        for ordinal in range(600):
            clock.now_s += 1.0
            journal.add_visit(numbered(ordinal))
        assert 8 <= len(service.told("POST", "visits")) <= 15
        assert len(journal.visits()) == 600

    def test_closing_the_store_sends_what_is_left(self, service: FaultyService, store: RemoteStore) -> None:
        store.open_profile("key")
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        store.close()
        assert list(service.visits) == [0]

    def test_an_ordinal_is_taken_once_among_the_processes_of_a_machine(self, store: RemoteStore) -> None:
        first, second = store.open_profile("key"), store.open_profile("key")
        first.add_visit(VISIT)
        with pytest.raises(StoreError, match=r"visit 0 of profile 1 in .* is already there: another process runs"):
            second.add_visit(replace(VISIT, ms=9.0))
        assert first.visits() == [VISIT]

    def test_a_profile_gone_on_with_on_another_machine_is_told(
        self, service: FaultyService, store: RemoteStore, clock: Hand
    ) -> None:
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        service.visits[0] = asdict(replace(VISIT, ms=9.0))
        clock.now_s = BATCH_S
        with pytest.raises(StoreError, match=r"visit 0 of profile 1 .* another process runs the same profile"):
            journal.add_visit(FAILED)
        assert list(service.visits) == [0]

    def test_a_profile_abandoned_on_another_machine_refuses_the_next_batch(
        self, service: FaultyService, store: RemoteStore, clock: Hand
    ) -> None:
        journal = store.open_profile("key")
        service.state, clock.now_s = "abandoned", BATCH_S
        with pytest.raises(StoreError, match="is abandoned and takes nothing more"):
            journal.add_visit(VISIT)


class TestKilledWriters:
    def test_every_visit_whose_call_returned_is_there(self, service: FaultyService, store: RemoteStore) -> None:
        run_until_killed(service.url, "0", str(BATCH_VISITS + 44))
        assert len(service.visits) == BATCH_VISITS
        journal = store.open_profile("key")
        assert journal.is_resumed
        assert [visit.ms for visit in journal.visits()] == [1.0 + n / 3 for n in range(BATCH_VISITS + 44)]

    def test_a_resumed_profile_sends_each_visit_once(self, service: FaultyService, store: RemoteStore) -> None:
        service.faults["POST"].extend([None, "drop after"])  # the batch is kept, and its writer never knows
        run_until_killed(service.url, "0", str(BATCH_VISITS))
        run_until_killed(service.url, str(BATCH_VISITS), str(2 * BATCH_VISITS + 1))
        store.open_profile("key").deliver()
        assert list(service.visits) == list(range(2 * BATCH_VISITS + 1))

    def test_half_a_line_of_a_crashed_machine_is_cut_off(self, store: RemoteStore, cache: Path) -> None:
        store.open_profile("key").add_visit(VISIT)
        with spool(cache).open("ab") as stream:
            stream.write(b'{"visit": {"ordinal": 1, "sur')
        journal = store.open_profile("key")
        journal.add_visit(FAILED)
        assert journal.visits() == [VISIT, FAILED]

    def test_a_damaged_line_is_refused(self, store: RemoteStore, cache: Path) -> None:
        store.open_profile("key").add_visit(VISIT)
        spool(cache).write_text(spool(cache).read_text().replace("held-out", "nothing"))
        with pytest.raises(StoreError, match=r"was damaged \(.*\); start over with --fresh"):
            store.open_profile("key")

    def test_visits_whose_surfaces_are_finished_do_not_come_back(
        self, service: FaultyService, store: RemoteStore
    ) -> None:
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        service.parts["surfaces"] = "finished by a process that was killed before it could note it down"
        again = store.open_profile("key")
        assert again.visits() == []
        again.deliver()
        assert service.visits == {}

    def test_another_profile_of_the_same_number_does_not_get_the_visits(
        self, service: FaultyService, store: RemoteStore
    ) -> None:
        store.open_profile("key").add_visit(VISIT)
        service.begun = "later, after the database was restored from a copy"
        assert store.open_profile("key").visits() == []


class TestFinishing:
    def test_surfaces_take_the_place_of_the_visits(self, service: FaultyService, store: RemoteStore) -> None:
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        journal.finish_surfaces([SURFACE])
        assert (journal.visits(), len(service.surfaces)) == ([], 1)
        assert store.open_profile("key").visits() == []

    def test_a_lost_answer_does_not_double_surfaces(self, service: FaultyService, store: RemoteStore) -> None:
        journal = store.open_profile("key")
        service.faults["POST"].append("drop after")
        journal.finish_surfaces([SURFACE])
        assert len(service.surfaces) == 1

    def test_a_finished_profile_refuses_visits_here_and_in_other_processes(self, store: RemoteStore) -> None:
        journal, other = store.open_profile("key"), store.open_profile("key")
        journal.finish()
        for each in (journal, other):
            with pytest.raises(StoreError, match=r"profile 1 in .* is finished and takes nothing more"):
                each.add_visit(VISIT)

    def test_a_part_comes_back_byte_for_byte_under_any_name(self, service: FaultyService, store: RemoteStore) -> None:
        text = '{ "ü" :\t1.0,\r\n "x":[ ] }' + "x" * 2000
        journal = store.open_profile("key")
        journal.add_part("a/ü name?", text)
        assert (journal.part("a/ü name?"), journal.part("another")) == (text, None)
