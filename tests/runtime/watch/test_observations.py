"""Observations: as JSON and back, into the store from a thread of their own, and never in the way."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.db import open_store
from spectune.errors import PlanError, SpectuneError
from spectune.planner.plans.observation import LARGEST, CellObservation, Observation, moment_of
from spectune.profiler.records.wire import from_json, to_json
from spectune.runtime.watch.observations import MOST_WAITING, ObservationWriter, keeper

CELL = CellObservation(
    batch=8,
    context=128,
    is_planned=True,
    policy="chain of 3",
    drafter="small",
    rounds=3,
    tokens=14,
    kept=(0, 2, 3, 2),
    draft_ms=3.0,
    verify_ms=5.0,
    round_ms=10.0,
    block_tokens_per_s=(1400.0,),
)
SEEN = Observation(
    plan_id=1,
    device="here",
    dtype="float32",
    source="this device",
    spectune="0.1",
    began="2026-01-01T00:00:00+00:00",
    ended="2026-01-01T01:00:00+00:00",
    cells=(CELL,),
    events=("something",),
)


@given(st.lists(st.floats(0.0, LARGEST), max_size=4), st.text(max_size=9), st.lists(st.integers(0, 2**40), max_size=5))
def test_an_observation_comes_back_bit_for_bit(speeds: list[float], event: str, kept: list[int]) -> None:
    cell = replace(CELL, block_tokens_per_s=tuple(speeds), kept=tuple(kept))
    seen = replace(SEEN, cells=(cell,), events=(event,))
    assert from_json(Observation, to_json(seen)) == seen


def test_host_time_and_acceptance_follow_from_what_was_counted() -> None:
    assert CELL.host_ms == 2.0
    assert CELL.accepted_at_least == (5, 2)  # of 7, the draft's first token was kept 5 times and its second 2 times


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"tokens": -1}, {"round_ms": float("nan")}, {"kept": (1, -1)}, {"draft_ms": -1.0}]
)
def test_an_observed_cell_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        replace(CELL, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"block_tokens_per_s": (1e308,)}, {"tokens": 10**400}])
def test_a_speed_that_no_axis_can_show_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError, match=r"leave out what was not timed|counts of 0 to"):
        replace(CELL, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["began", "ended"])
@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "9999-12-31T23:59:59-10:00"])
def test_a_text_that_tells_no_moment_is_refused(end: str, text: str) -> None:
    with pytest.raises(PlanError, match=rf"a moment is ISO 8601, such as .*, got '{text}'"):
        replace(SEEN, **{end: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["2026-01-01T12:00:00+00:00", "2026-01-01T12:00:00Z", "2026-01-01T14:00+02:00"])
def test_moments_are_in_utc_unless_they_name_a_zone(text: str) -> None:
    assert moment_of(text) == moment_of("2026-01-01T12:00:00")


def test_a_damaged_observation_is_refused() -> None:
    with pytest.raises(SpectuneError):
        from_json(Observation, to_json(SEEN).replace('"rounds":3', '"rounds":"three"'))


def test_documents_reach_the_plan_s_place_in_the_store(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        number = store.add_plan("{}", device="d", device_kind="k", target="t", workload="w", temperature=0.0)
    writer = ObservationWriter(keeper(url, number))
    for document in ("one", "two"):
        writer.submit(document)
    writer.close("three")
    with open_store(url) as store:
        assert store.observations(number) == ["one", "two", "three"]
    assert (writer.written, writer.waiting, writer.failure) == (3, 0, "")


def test_handing_over_does_not_wait_for_a_slow_store() -> None:
    may_go_on, kept = threading.Event(), []

    def keep(document: str) -> None:
        may_go_on.wait(10.0)
        kept.append(document)

    writer = ObservationWriter(keep)
    for number in range(5):
        writer.submit(str(number))  # returns, though nothing can be written yet
    assert not kept
    may_go_on.set()
    writer.close()
    assert kept == ["0", "1", "2", "3", "4"]


def test_whoever_ends_waits_for_a_silent_store_no_longer_than_it_may() -> None:
    answers = threading.Event()

    def keep(document: str) -> None:
        answers.wait(30.0)

    writer = ObservationWriter(keep)
    begun = time.monotonic()
    writer.close("last", timeout_s=0.2)
    assert time.monotonic() - begun < 10.0
    answers.set()


def test_where_no_thread_can_be_had_the_last_documents_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kept: list[str] = []
    writer = ObservationWriter(kept.append)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer.close("last")
    assert kept == ["last"]


@pytest.mark.parametrize("name", ["store.db", "sqlite:///store.db"])
def test_a_store_named_by_a_relative_path_is_the_same_in_another_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with open_store(name) as store:
        number = store.add_plan("{}", device="d", device_kind="k", target="t", workload="w", temperature=0.0)
    keep = keeper(name, number)
    monkeypatch.chdir(tmp_path / "elsewhere")
    keep("one")
    assert not list((tmp_path / "elsewhere").iterdir())
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.observations(number) == ["one"]


def test_what_could_not_be_written_is_tried_again_in_order() -> None:
    kept: list[str] = []
    is_down = True

    def keep(document: str) -> None:
        if is_down:
            raise ConnectionError("nobody there")
        kept.append(document)

    writer = ObservationWriter(keep)
    writer.submit("one")
    writer.close()
    assert (writer.failure, writer.waiting) == ("ConnectionError: nobody there", 1)
    is_down = False
    writer.submit("two")
    writer.close()
    assert (kept, writer.failure) == (["one", "two"], "")


def test_a_store_that_stays_away_costs_bounded_memory() -> None:
    def keep(document: str) -> None:
        raise ConnectionError("nobody there")

    writer = ObservationWriter(keep)
    for number in range(MOST_WAITING + 5):
        writer.submit(str(number))
    writer.close()
    assert writer.waiting <= MOST_WAITING
    assert writer.waiting + writer.dropped == MOST_WAITING + 5


def test_a_plan_that_is_gone_is_a_failure_that_is_told(tmp_path: Path) -> None:
    writer = ObservationWriter(keeper(str(tmp_path / "store.db"), 3))
    writer.close("lost")
    assert "there is no plan 3" in writer.failure
