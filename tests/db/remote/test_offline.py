"""What a client keeps of a service: plans for when it is away, and observations until it is back."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.db.remote.cache import AnswerCache
from spectune.db.remote.observations import LONGEST_WAIT_S, ObservationQueue, Waiting
from spectune.db.remote.remote_store import RemoteStore
from spectune.db.remote.transport import AwayError, RefusedError
from spectune.db.url import TOKEN_VARIABLE, service_url
from spectune.errors import StoreError

from ...support.faulty_service import TOKEN, Fault, FaultyService, served

AWAY: list[Fault] = [503] * 30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with served(FaultyService(plans={1: '{"ü" :\t1.0}', 2: "{}", 5: "[]"})) as running:
        yield running


def opened(service: FaultyService) -> RemoteStore:
    return RemoteStore(service_url(service.url), sleep=lambda _: None)


def waiting_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("services/*/observations/*.json"))


class TestPlans:
    def test_a_plan_comes_back_byte_for_byte(self, service: FaultyService) -> None:
        with opened(service) as store:
            assert store.plan(1) == '{"ü" :\t1.0}'
            assert store.note == ""

    def test_a_list_is_read_page_by_page(self, service: FaultyService) -> None:
        with opened(service) as store:
            assert [row.id for row in store.plans()] == [1, 2, 5]
            assert [row.id for row in store.plans(limit=1, after=1)] == [2]

    def test_an_unchanged_plan_is_not_sent_again(self, service: FaultyService) -> None:
        with opened(service) as store:
            first, again = store.plan(1), store.plan(1)
        assert first == again
        assert "if-none-match" in service.told("GET", "/plans/1")[1].headers

    @pytest.mark.parametrize("etag", ['W/"{}"', '"{}-gzip"', 'W/"{}--gzip"', '"{}-br"'])
    def test_a_plan_comes_through_a_proxy_that_packs_answers(self, service: FaultyService, etag: str) -> None:
        service.etag = etag
        with opened(service) as store:
            assert store.plan(1) == store.plan(1) == '{"ü" :\t1.0}'
        assert "if-none-match" in service.told("GET", "/plans/1")[1].headers

    def test_a_plan_that_is_still_so_is_kept_as_of_now(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store:
            store.plan(1)
            (file,) = (one for one in cache.glob("services/*/answers/*.json") if "/plans/1" in one.read_text())
            file.write_text(re.sub(r'"at":"[^"]*"', '"at":"2001-02-03T04:05:06+00:00"', file.read_text()))
            os.utime(file, (1.0, 1.0))
            store.plan(1)
            assert file.stat().st_mtime > 1.0
            service.faults["GET"].extend(AWAY)
            store.plan(1)
            assert "2001-02-03" not in store.note and "what it said on 20" in store.note

    def test_a_changed_answer_takes_the_place_of_the_kept_one(self, service: FaultyService) -> None:
        with opened(service) as store:
            store.plan(2)
            service.plans[2] = '{"new": 1}'
            assert store.plan(2) == '{"new": 1}'

    def test_what_was_read_is_used_while_the_service_is_away_and_that_is_told(self, service: FaultyService) -> None:
        with opened(service) as store:
            rows, text = store.plans(), store.plan(1)
        service.faults["GET"].extend(AWAY)
        with opened(service) as store:
            assert (store.plans(), store.plan(1)) == (rows, text)
            assert store.note.startswith(f"{service.url} does not answer; what it said on 20")

    def test_a_store_opens_although_its_service_is_gone(self) -> None:
        with served(FaultyService(plans={1: "{}"})) as gone, open_store(gone.url) as store:
            text = store.plan(1)
        with open_store(gone.url) as store:
            assert store.plan(1) == text

    def test_what_was_never_read_is_not_there(self, service: FaultyService) -> None:
        with opened(service) as store:
            service.faults["GET"].extend(AWAY)
            with pytest.raises(AwayError, match="is not ready"):
                store.plan(1)

    def test_a_service_that_is_back_is_asked_again(self, service: FaultyService) -> None:
        with opened(service) as store:
            store.plan(2)
        service.faults["GET"].extend([503, 503])
        service.plans[2] = "[1]"
        with opened(service) as store:
            assert store.plan(2) == "{}"
        with opened(service) as store:
            assert (store.plan(2), store.note) == ("[1]", "")

    def test_a_refusal_is_no_absence(self, service: FaultyService) -> None:
        with opened(service) as store:
            store.plan(1)
            del service.plans[1]
            with pytest.raises(RefusedError):
                store.plan(1)

    def test_what_the_service_says_is_gone_does_not_come_back_when_it_goes_away(self, service: FaultyService) -> None:
        with opened(service) as store:
            store.plan(1)
            del service.plans[1]
            with pytest.raises(RefusedError):
                store.plan(1)
            service.faults["GET"].extend(AWAY)
            with pytest.raises(AwayError):
                store.plan(1)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_token_empties_no_cache(self, service: FaultyService, status: Fault) -> None:
        with opened(service) as store:
            text = store.plan(1)
            service.faults["GET"].append(status)
            with pytest.raises(RefusedError):
                store.plan(1)
            service.faults["GET"].extend(AWAY)
            assert store.plan(1) == text

    @pytest.mark.parametrize("page", [b"<html>we are back soon</html>", b"\xff\xfe"])
    def test_a_page_that_a_proxy_shows_takes_no_answer_s_place(self, service: FaultyService, page: bytes) -> None:
        with opened(service) as store:
            rows = store.plans()
        service.page = page
        with pytest.raises(StoreError, match="does not understand"):
            opened(service)
        service.page = b""
        with opened(service) as store:
            service.page = page
            with pytest.raises(StoreError, match="does not understand"):
                store.plans()
        service.faults["GET"].extend(AWAY)
        with opened(service) as store:
            assert store.plans() == rows

    def test_a_kept_answer_that_is_not_understood_is_as_good_as_absent(
        self, service: FaultyService, cache: Path
    ) -> None:
        with opened(service) as store:
            store.plans()
            answers = AnswerCache(next(cache.glob("services/*/answers")))
            answers.keep("/v1/plans?limit=1000", "<html>", None)
            service.faults["GET"].extend(AWAY)
            with pytest.raises(AwayError):
                store.plans()

    def test_a_note_goes_when_the_service_is_back_and_nothing_old_was_used(self, service: FaultyService) -> None:
        with opened(service) as store:
            service.faults["GET"].extend(AWAY[:8])
            with pytest.raises(AwayError):
                store.plan(1)
            assert store.note
            store.plan(1)
            assert store.note == ""

    def test_a_cache_that_has_become_read_only_costs_no_answer(
        self, service: FaultyService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(file: Path, *_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))

        with opened(service) as store:
            store.plan(1)
        monkeypatch.setattr(Path, "replace", refuse)  # a file that was written gets no name
        monkeypatch.setattr(Path, "unlink", refuse)
        with opened(service) as store:
            assert [row.id for row in store.plans()] == [1, 2, 5]

    def test_a_service_that_was_never_reached_is_told_at_once(self) -> None:
        with served(FaultyService()) as gone:
            pass
        with pytest.raises(StoreError, match="cannot be reached"):
            opened(gone)

    @pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"asked": 1}'])
    def test_damaged_files_are_as_good_as_absent(self, service: FaultyService, cache: Path, damage: bytes) -> None:
        with opened(service) as store:
            store.plan(1)
            for file in cache.glob("services/*/answers/*.json"):
                file.write_bytes(damage)
            assert store.plan(1) == '{"ü" :\t1.0}'
            assert "if-none-match" not in service.told("GET", "/plans/1")[1].headers

    def test_a_body_that_was_changed_on_disk_is_not_used(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store:
            store.plan(2)
            for file in cache.glob("services/*/answers/*.json"):
                file.write_text(file.read_text().replace('"body":"{}"', '"body":"[]"'))
            service.faults["GET"].extend(AWAY)
            with pytest.raises(AwayError):
                store.plan(2)

    def test_the_cache_has_no_token_in_it(self, service: FaultyService, cache: Path) -> None:
        with open_store(service.url.replace("://", f"://:{TOKEN}@")) as store:
            store.plan(1)
            store.add_observation(1, "seen")
        files = [file for file in cache.rglob("*") if file.is_file()]
        assert files
        assert not [file for file in files if TOKEN in file.read_text() + str(file)]

    def test_the_oldest_answers_make_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spectune.db.remote.cache.MOST_ANSWERS", 3)
        answers = AnswerCache(tmp_path)
        for number in range(5):
            answers.keep(f"/{number}", "x", None)
            os.utime(max(tmp_path.glob("*.json"), key=lambda file: file.stat().st_mtime_ns), ns=(number, number))
        assert len(list(tmp_path.glob("*"))) == 3
        assert (answers.recalled("/0"), answers.recalled("/4") is None) == (None, False)

    def test_a_plan_that_does_not_have_its_hash_is_refused(self, service: FaultyService, cache: Path) -> None:
        service.is_mistaken = True
        with opened(service) as store, pytest.raises(StoreError, match="does not have its hash"):
            store.plan(1)
        service.is_mistaken = False
        with opened(service) as store:
            assert store.plan(1) == service.plans[1]


class TestObservations:
    def test_one_that_is_delivered_does_not_wait(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store:
            store.add_observation(1, "seen")
        assert (service.outcomes, waiting_files(cache)) == (["seen"], [])

    def test_one_of_an_unknown_plan_is_refused_and_does_not_wait(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store, pytest.raises(StoreError, match="there is no /plans/9"):
            store.add_observation(9, "seen")
        assert waiting_files(cache) == []

    @pytest.mark.parametrize("status", [401, 403, 500])
    def test_one_of_a_client_that_is_refused_waits(self, service: FaultyService, cache: Path, status: Fault) -> None:
        with opened(service) as store:
            service.faults["POST"].extend([status] * 9)
            for document in "ab":
                store.add_observation(1, document)
        assert (service.outcomes, len(waiting_files(cache))) == ([], 2)
        service.faults["POST"].clear()
        with opened(service) as store:
            store.add_observation(1, "c")
        assert (service.outcomes, waiting_files(cache)) == (["a", "b", "c"], [])

    def test_those_the_service_misses_are_delivered_later_in_their_order(
        self, service: FaultyService, cache: Path
    ) -> None:
        with opened(service) as store:
            service.faults["POST"].extend(["drop before"] * 2)
            for document in "abc":
                store.add_observation(1, document)
        assert (service.outcomes, len(waiting_files(cache))) == ([], 3)
        with opened(service) as store:
            store.add_observation(1, "d")
        assert (service.outcomes, waiting_files(cache)) == (["a", "b", "c", "d"], [])

    def test_one_that_was_kept_although_no_answer_came_is_not_kept_twice(self, service: FaultyService) -> None:
        with opened(service) as store:
            service.faults["POST"].extend(["drop after", "drop after"])
            store.add_observation(1, "a")
        assert service.outcomes == ["a"]
        with opened(service) as store:
            store.add_observation(1, "b")
        assert service.outcomes == ["a", "b"]

    def test_one_that_is_refused_later_holds_nothing_up(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store:
            service.faults["POST"].extend(AWAY[:2])
            store.add_observation(9, "lost")
        with opened(service) as store:
            store.add_observation(1, "seen")
        assert (service.outcomes, waiting_files(cache)) == (["seen"], [])

    def test_those_that_wait_are_bounded_and_the_oldest_go_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spectune.db.remote.observations.MOST_WAITING", 2)
        queue, sent = ObservationQueue(tmp_path), []
        for document in "abc":
            queue.add(Waiting(plan_id=1, document=document, key=document))
        queue.deliver(lambda waiting: sent.append(waiting.document))
        assert sent == ["b", "c"]

    def test_damaged_and_too_old_ones_are_dropped(self, tmp_path: Path) -> None:
        queue, sent = ObservationQueue(tmp_path), []
        for document in "abc":
            queue.add(Waiting(plan_id=1, document=document, key=document))
        damaged, old, _ = queue.waiting()
        damaged.write_text("{")
        os.utime(old, (0.0, time.time() - LONGEST_WAIT_S - 1))
        queue.deliver(lambda waiting: sent.append(waiting.document))
        assert (sent, queue.waiting()) == (["c"], [])

    def test_one_call_delivers_some_of_many(self, service: FaultyService, cache: Path) -> None:
        with opened(service) as store:
            service.faults["POST"].extend(AWAY)
            for number in range(30):
                store.add_observation(1, f"{number}")
        service.faults["POST"].clear()
        for call, delivered in ((30, 20), (31, 32)):
            with opened(service) as store:
                store.add_observation(1, f"{call}")
            assert service.outcomes == [f"{number}" for number in range(delivered)]
        assert waiting_files(cache) == []

    def test_a_service_that_is_away_is_not_asked_for_each(self, service: FaultyService) -> None:
        with opened(service) as store:
            service.faults["POST"].extend(AWAY)
            for _ in range(5):
                store.add_observation(1, "seen")
        assert len(service.told("POST", "observations")) == 2
