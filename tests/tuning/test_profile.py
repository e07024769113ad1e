"""The profile job: a killed one goes on where it stopped, and loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from spectune.db import open_store
from spectune.errors import NoRoomError, RequestError
from spectune.planner.records.draft import DraftBatch
from spectune.profiler.device import detect
from spectune.profiler.latency import Interrupted
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.tuning.family import identify_all
from spectune.tuning.measuring.timing import time_surfaces
from spectune.tuning.profile import Profile, profile, request_key
from spectune.tuning.request import ProfileRequest

from ..support.coarse_design import timed_coarsely
from ..support.limited_memory import Limit
from ..support.tiny_family import quick_request, save_model

__all__ = ["timed_coarsely"]

Progress = Callable[[str, float], None]


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> ProfileRequest:
    return quick_request(tmp_path_factory.mktemp("family"))


def stop_at(step: str, after: int = 1) -> Progress:
    """Stop what is going on when a step has told so often how far it is: shares of time depend on a machine's pace."""
    told = count(1)

    def progress(what: str, done: float) -> None:
        if what == step and next(told) == after:
            raise KeyboardInterrupt

    return progress


def run(request: ProfileRequest, folder: Path, progress: Progress = lambda what, done: None) -> Profile:
    with open_store(str(folder / "store.db")) as store:
        return profile(request, store, lock_wait_s=60.0, progress=progress)


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "store.db")) as database:
        return database.execute(query).fetchall()


def test_a_profile_stopped_while_timing_keeps_every_call_and_goes_on(request_: ProfileRequest, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(request_, tmp_path, stop_at("timing forwards", after=11))
    before = rows(tmp_path, "SELECT ms FROM spectune_visit")
    done = run(request_, tmp_path)
    kept = {ms for s in (done.verify, *done.drafts.values()) for cell in s.measurements for ms in cell.repeats_ms}
    assert done.is_resumed and len(before) == 11
    assert {ms for (ms,) in before} <= kept


def test_a_profile_stopped_after_recording_does_not_record_again(request_: ProfileRequest, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(request_, tmp_path, stop_at("comparing the models"))
    parts = rows(tmp_path, "SELECT name, document FROM spectune_part ORDER BY name")
    with pytest.raises(KeyboardInterrupt):
        run(request_, tmp_path, stop_at("timing whole rounds"))
    assert set(parts) < set(rows(tmp_path, "SELECT name, document FROM spectune_part"))


def test_a_stopped_and_a_whole_profile_record_the_same(request_: ProfileRequest, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(request_, tmp_path, stop_at("recording small"))
    stopped, whole = run(request_, tmp_path), run(request_, tmp_path / "whole")
    assert stopped.traces == whole.traces
    assert stopped.pairwise == whole.pairwise


def test_a_profile_stopped_while_timing_rounds_keeps_every_call(request_: ProfileRequest, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(request_, tmp_path, stop_at("timing whole rounds"))
    before = {ms for (ms,) in rows(tmp_path, "SELECT ms FROM spectune_visit")}
    done = run(request_, tmp_path)
    assert before and before <= {ms for s in done.surfaces for cell in s.measurements for ms in cell.repeats_ms}


def test_forwards_are_timed_before_recording_behind_it_and_between_and_after_whole_rounds(
    request_: ProfileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def noted(timing: Any, family: Any, sink: Any, *, until: float, traces: Sequence[AcceptanceTrace]) -> object:
        told.append((until, len(traces)))
        return time_surfaces(timing, family, sink, until=until, traces=traces)

    monkeypatch.setattr("spectune.tuning.measuring.timing.time_surfaces", noted)
    run(replace(request_, batches=(1, 2)), tmp_path, lambda what, _: told.append(what))
    passed_over = ("timing forwards", "recording small")
    named = [what for what in told if what not in passed_over and not str(what).startswith("to come: ")]
    steps = [what for what, _ in groupby(named)]
    rounds = "timing whole rounds"
    assert steps == [
        "trying a few forwards", (0.25, 0), "decoding the target's own text", "comparing the models", "reading prompts",
        (0.5, 1), rounds, (0.75, 1), rounds, (1.0, 1),
    ]  # fmt: skip


def test_another_request_does_not_go_on_with_a_stopped_one(request_: ProfileRequest, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(request_, tmp_path, stop_at("timing forwards"))
    assert not run(replace(request_, seed=5), tmp_path).is_resumed


def key_of(request: ProfileRequest) -> str:
    return request_key(request, detect("cpu"), identify_all(request.models), [], [], request.record)


def test_drafters_named_in_another_order_are_another_request(request_: ProfileRequest, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", layers=1, seed=3)
    small = request_.models.drafters["small"]
    orders = ({"small": small, "other": other}, {"other": other, "small": small})
    asked = [replace(request_, models=replace(request_.models, drafters=drafters)) for drafters in orders]
    assert key_of(asked[0]) != key_of(asked[1])


def test_a_profile_that_takes_other_steps_is_another_request(
    request_: ProfileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = key_of(request_)
    monkeypatch.setattr("spectune.tuning.profile.STEPS", "without readings")
    assert key_of(request_) != now


def test_two_names_of_the_same_weights_are_refused_before_anything_is_recorded(
    request_: ProfileRequest, tmp_path: Path
) -> None:
    small = request_.models.drafters["small"]
    twice = replace(request_.models, drafters={"small": small, "again": small})
    with pytest.raises(RequestError, match="the drafters 'small' and 'again' are the same weights"):
        run(replace(request_, models=twice), tmp_path)
    assert rows(tmp_path, "SELECT name, document FROM spectune_part") == []


def test_a_workload_of_too_few_prompts_is_named(request_: ProfileRequest, tmp_path: Path) -> None:
    chat, *others = (replace(prompt, workload="chat") for prompt in request_.prompts)
    mixed = replace(request_, prompts=[chat, *others, replace(chat, workload="code")])
    with pytest.raises(RequestError, match=r"^workload 'code': a profile needs at least 2 prompts, got 1; add some$"):
        run(mixed, tmp_path)


def test_what_an_earlier_version_timed_is_not_gone_on_with(
    request_: ProfileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(request_)
    assert key_of(request_) == before
    monkeypatch.setattr("spectune.tuning.profile.version", lambda package: f"{package} of tomorrow")
    assert key_of(request_) != before


def test_a_finished_profile_leaves_no_journal_behind_and_says_how_its_rounds_ran_and_which_did_not(
    request_: ProfileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(drafter: HybridDrafter, batch: list[object], policy: object) -> DraftBatch:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(HybridDrafter, "draft", failing)
    done = run(request_, tmp_path)
    (left_out,) = (words for words in done.disturbances if "were not timed" in words)
    assert done.overhead.regime == "eager" and left_out.startswith("rounds of batch 1 with a drafter were not timed: ")
    assert rows(tmp_path, "SELECT count(*) FROM spectune_visit UNION ALL SELECT count(*) FROM spectune_part") == [
        (0,),
        (0,),
    ]


def test_a_profile_that_finds_no_memory_ends_in_one_line(
    request_: ProfileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress(what: str, done: float) -> None:
        if what == "comparing the models":
            Limit(monkeypatch, tokens=0)

    with pytest.raises(NoRoomError, match=r"memory has no room for this profile \(.*\); free some, or ask for fewer"):
        run(request_, tmp_path, progress)


def test_every_workload_and_temperature_is_recorded_apart(request_: ProfileRequest, tmp_path: Path) -> None:
    tagged = [*request_.prompts, *(replace(prompt, workload="chat") for prompt in request_.prompts)]
    done = run(replace(request_, prompts=tagged, more_temperatures=(0.8,)), tmp_path)
    setups = [("default", 0.0), ("chat", 0.0), ("default", 0.8), ("chat", 0.8)]
    assert [(trace.workload, trace.temperature) for trace in done.traces] == setups
    assert [(agreement.workload, agreement.temperature) for agreement in done.pairwise] == setups
    ways = [[s.is_sampled for s in done.overhead.at_temperature(heat).samples] for heat in (0.0, 0.8)]
    assert [set(found) for found in ways] == [{False}, {True}] and len(ways[0]) == len(ways[1])


def test_a_workload_of_one_prompt_is_refused_before_anything_is_measured(
    request_: ProfileRequest, tmp_path: Path
) -> None:
    tagged = [*request_.prompts, replace(request_.prompts[0], workload="chat")]
    with pytest.raises(RequestError, match="at least 2 prompts"):
        run(replace(request_, prompts=tagged), tmp_path)
