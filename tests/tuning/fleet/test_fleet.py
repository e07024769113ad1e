"""One profile on several devices: which devices, what is told, and what one failure leaves of the others."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.errors import DeviceError, ModelError, RequestError, StoreError
from spectune.profiler.device import detect, detect_all
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.device import Device
from spectune.tuning.fleet.fleet import (
    FleetJob,
    Outcome,
    Quarters,
    Word,
    fleet_key,
    profile_all,
    requests_of_devices,
)
from spectune.tuning.fleet.turns import _from_anywhere, profile_cluster
from spectune.tuning.profile import Profile
from spectune.tuning.request import Models, ProfileRequest

from ...support.coarse_design import timed_coarsely
from ...support.tiny_family import quick_request

__all__ = ["timed_coarsely"]

REQUEST = ProfileRequest(
    models=Models(target=Path("nowhere")), prompts=[Prompt(text="a"), Prompt(text="b")], batches=(1,), device="all"
)


@pytest.fixture
def job(tmp_path: Path) -> FleetJob:
    return FleetJob(request=REQUEST, facts=lambda done, url: {}, store_url=str(tmp_path / "store.db"))


def test_all_means_every_device_of_this_machine() -> None:
    assert len(requests_of_devices(REQUEST)) == len(detect_all())
    assert requests_of_devices(REQUEST)[-1] == replace(REQUEST, device="cpu")


def test_a_named_device_means_itself() -> None:
    request = replace(REQUEST, device="cuda:3")
    assert requests_of_devices(request) == (request,)


def test_a_device_that_fails_is_an_outcome_and_the_next_one_is_tried(job: FleetJob) -> None:
    outcomes = list(profile_all(job, lambda word: None))
    assert [type(outcome.error) for outcome in outcomes] == [ModelError] * len(detect_all())


def test_a_device_that_an_earlier_run_has_finished_is_not_measured_again_until_all_are(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    request = replace(quick_request(tmp_path), device="all", max_new_tokens=4)

    def facts(done: Profile, url: str) -> dict[str, object]:
        made.append(url)
        return {"made": len(made)}

    job = replace(job, request=request, facts=facts)
    here, gone = detect("cpu"), Device(kind="cuda", name="Gone", index=7, memory_bytes=1)
    devices = [here, gone]
    monkeypatch.setattr("spectune.tuning.fleet.fleet.detect_all", lambda: tuple(devices))
    first, failed = profile_all(job, lambda word: None)
    assert first.facts == {"made": 1} and failed.error is not None
    devices.remove(gone)
    (again,) = profile_all(job, lambda word: None)
    assert again.facts is not None and again.facts["made"] == len(made) == 1
    age = datetime.now(UTC) - datetime.fromisoformat(again.facts["done_before"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=5)
    with open_store(job.store_url) as store:
        assert not store.open_profile(fleet_key(request)).is_resumed


def test_images_of_prompts_are_found_from_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    request = replace(REQUEST, prompts=[replace(prompt, images=(Path("a.png"),)) for prompt in REQUEST.prompts])
    assert {image for prompt in _from_anywhere(request).prompts for image in prompt.images} == {tmp_path / "a.png"}


def test_a_store_that_cannot_be_opened_ends_it_before_any_device(job: FleetJob, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        next(profile_all(replace(job, store_url=str(tmp_path / "file" / "store.db")), lambda word: None))


def test_a_failure_is_one_line_and_names_what_is_not_ours() -> None:
    assert Outcome(where="cpu", error=ModelError("no\nmodel")).failure == "no model"
    assert Outcome(where="cpu", error=MemoryError("too\nlarge")).failure == "MemoryError: too large"


def test_progress_is_told_at_every_quarter_of_every_step() -> None:
    words: list[Word] = []
    tell = Quarters("here", words.append)
    for what in ("timing", "recording"):
        for percent in range(0, 101, 5):
            tell(what, percent / 100)
    assert words == [("here", what, share) for what in ("timing", "recording") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def test_a_cluster_chooses_its_devices_itself(job: FleetJob) -> None:
    with pytest.raises(RequestError, match="got --device all; leave it out"):
        next(profile_cluster(job, lambda word: None))


def test_a_cluster_without_ray_says_what_to_install(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python itself notes of a package that is not there
    anywhere = replace(job, request=replace(REQUEST, device="auto"))
    with pytest.raises(DeviceError, match=r"pip install -e '\.\[ray\]'"):
        next(profile_cluster(anywhere, lambda word: None))


def test_a_cluster_that_is_not_there_is_refused(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    anywhere = replace(job, request=replace(REQUEST, device="auto"))
    with pytest.raises(DeviceError, match="cannot join a Ray cluster at 'no such place'"):
        next(profile_cluster(anywhere, lambda word: None, "no such place"))
