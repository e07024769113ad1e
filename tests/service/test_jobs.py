"""Planning jobs: asked for over HTTP, done by a process of their own, once, whatever happens to it."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

from spectune.db.jobs.jobs import JobRow, Jobs, JobTold
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_from_json
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json, to_json
from spectune.report.site.contents import Contents
from spectune.report.site.jobs import jobs_page
from spectune.report.site.links import SiteLinks
from spectune.service.app import create_app
from spectune.service.jobs import PlanWanted
from spectune.service.planning import Planning, Worker, _Planner
from spectune.service.settings import ServiceSettings
from spectune.tuning.plan import make_plan
from spectune.tuning.request import PlanRequest

from ..support.fresh_store import fresh_store
from ..support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, record, texts

REQUEST = {
    "target": TARGET.key,
    "device": DEVICE.fingerprint,
    "dtype": "float32",
    "workload": "made up",
    "batches": [1],
    "contexts": [30],
    "trials": 1,
}
OPEN = ServiceSettings(auth="off", rate_per_s=0.0, workers=0)
WAIT_S = 120.0  # a stalled machine is no failure


@cache
def measured() -> PlanInputs:
    spoken = Language(3)
    return inputs(record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 12), every_node(2, 2)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """A store that holds all a plan needs."""
    found, drafter = measured(), measured().drafters[0]
    with fresh_store(tmp_path) as opened:
        opened.add_device(found.device)
        for model in (found.target, drafter.model):
            opened.add_model(model)
        for surface in (found.verify, drafter.surface):
            opened.add_measurements(key_of(surface), surface.measurements)
        opened.add_overhead(found.overhead)
        opened.add_trace(drafter.trace)
        yield opened


@pytest.fixture
def client(store: SqlStore) -> Iterator[TestClient]:
    with TestClient(create_app(store, OPEN)) as opened:
        yield opened


def key_of(surface: LatencySurface) -> SurfaceKey:
    return SurfaceKey(**{field.name: getattr(surface, field.name) for field in fields(SurfaceKey)})


def asked(client: TestClient, **changes: Any) -> Any:
    return client.post("/v1/jobs", json={"kind": "plan", "request": {**REQUEST, **changes}})


def wait_for(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


def test_a_request_over_http_takes_what_a_plan_request_takes_but_nothing_lossy() -> None:
    wanted, request = ({field.name: field.default for field in fields(kind)} for kind in (PlanWanted, PlanRequest))
    lossy = {"allow_lossy": False, "max_quality_loss": None, "lossy": ()}
    assert wanted | lossy == request and not lossy.keys() & wanted.keys()


def test_a_job_is_named_by_what_stands_before_its_tables() -> None:
    asked = to_json(PlanWanted(target="none such", device="here", workload="code"))
    cut = asked.replace('"tables":[]}', '"tables":[{"name":"a table that was cut o')
    assert cut != asked
    row = JobRow(
        id=1, key="k", kind="plan", state="waiting", request=cut, token_name="ci", progress=0.0, note="", plan_id=None,
        error=None, created="", heartbeat=None, attempts=0, worker=None,
    )  # fmt: skip
    with SqlStore(resolve_url(":memory:")) as empty:
        body = jobs_page(Contents(empty), SiteLinks(), [row]).body
    assert "plan for none such, code" in body


def work(store: SqlStore) -> None:
    """Do what the next job asks for, in this process."""
    jobs = Jobs(store)
    job = jobs.lease("here")
    assert job is not None
    Worker("here").do(job, jobs, store)


def test_a_job_makes_the_plan_that_the_command_would_make(client: TestClient, store: SqlStore) -> None:
    answer = asked(client)
    assert answer.status_code == 202
    work(store)
    told = from_json(JobTold, client.get(f"/v1/jobs/{answer.json()['key']}").content)
    assert (told.state, told.progress, told.error, told.attempts) == ("done", 1.0, None, 1)
    made = plan_from_json(store.plan(told.plan_id or 0))
    request = PlanRequest(
        target=TARGET, device=DEVICE, dtype="float32", workload="made up", batches=(1,), contexts=(30,), trials=1
    )
    wanted = make_plan(request, store)
    assert replace(made, provenance=wanted.provenance) == wanted
    assert store.plan_sources(told.plan_id or 0) == store.plan_sources((told.plan_id or 0) + 1)


def test_each_job_is_done_once_or_left_cancelled_whatever_ends_its_workers(client: TestClient, store: SqlStore) -> None:
    """Three workers of one planner end: by a cancelled job, killed, and told to; each loads much, so one test."""
    planning = Planning(store, 1, politeness=0)
    planning.start()
    try:
        cancelled, leaver = busy(client, planning)
        assert client.delete(f"/v1/jobs/{cancelled}").status_code == 200
        wait_for(lambda: not leaver.is_alive())
        assert leaver.exitcode == 0

        key, killed = busy(client, planning)
        os.kill(killed.pid or 0, signal.SIGKILL)
        wait_for(lambda: told(client, key)["state"] == "running" and told(client, key)["attempts"] == 2)
        os.kill(planning._workers[0].process.pid or 0, signal.SIGTERM)
        wait_for(lambda: told(client, key)["state"] in ("done", "failed"))
        assert planning.is_alive
    finally:
        planning.stop()
    assert told(client, cancelled)["state"] == "cancelled"
    assert (told(client, key)["state"], told(client, key)["attempts"]) == ("done", 2)  # who is told to end lets go
    assert [row.id for row in store.plans()] == [told(client, key)["plan_id"]]


def test_a_job_that_its_ended_worker_could_not_let_go_of_waits_again(client: TestClient, store: SqlStore) -> None:
    key = asked(client).json()["key"]
    assert Jobs(store).lease("worker") is not None
    spawning = get_context("spawn")
    process = spawning.Process(target=int)
    process.start()
    process.join()
    planning = Planning(store, 0)
    planning._workers = [_Planner(name="worker", process=process, pipe=spawning.Pipe()[0], began=0.0)]
    planning._replace_the_dead()
    assert (told(client, key)["state"], told(client, key)["attempts"]) == ("waiting", 0)


def busy(client: TestClient, planning: Planning) -> tuple[str, SpawnProcess]:
    """Return the key of a new job, and the process that has begun it."""
    key = asked(client).json()["key"]
    wait_for(lambda: told(client, key)["state"] == "running")
    return key, planning._workers[0].process


def told(client: TestClient, key: str) -> Any:
    return client.get(f"/v1/jobs/{key}").json()


def test_a_job_that_lacks_a_trace_fails_with_what_to_do(client: TestClient, store: SqlStore) -> None:
    key = asked(client, workload="nobody's").json()["key"]
    work(store)
    told = client.get(f"/v1/jobs/{key}").json()
    assert told["state"] == "failed" and "run: spectune profile" in told["error"]
    assert client.delete(f"/v1/jobs/{key}").status_code == 409


def test_a_cancelled_job_is_done_by_nobody_and_its_events_end(client: TestClient, store: SqlStore) -> None:
    key = asked(client).json()["key"]
    assert client.delete(f"/v1/jobs/{key}").json()["state"] == "cancelled"
    assert Jobs(store).lease("here") is None
    answer = client.get(f"/v1/jobs/{key}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith("event: progress\ndata: {") and '"state":"cancelled"' in answer.text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device": "unknown"}, "knows no device"),
        ({"target": "unknown"}, "knows no model"),
        ({"batches": [0]}, "at least 1"),
        ({"trials": 10**6}, "trials"),
        ({"cached_share": 0.5}, "new_tokens alone"),
        ({"new_tokens": 8, "cached_share": 1.0}, "less than 1"),
        ({"batches": "1"}, "batches"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_job_that_cannot_be_done_is_not_taken(client: TestClient, changes: dict[str, Any], told: str) -> None:
    answer = asked(client, **changes)
    assert answer.status_code == 422 and told in answer.json()["detail"]
    assert client.get("/v1/jobs").json()["items"] == []


def test_only_so_many_jobs_wait(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.service.jobs.MOST_JOBS", 1)
    first, second = asked(client), asked(client)
    assert (first.status_code, second.status_code, second.headers["retry-after"]) == (202, 429, "60")
    client.delete(f"/v1/jobs/{first.json()['key']}")
    assert asked(client).status_code == 202


def test_a_job_takes_its_target_from_where_it_lies_now(client: TestClient, store: SqlStore) -> None:
    asked(client)  # whoever was asked before has read where it lay
    moved = replace(TARGET, name="moved", location="/elsewhere")
    store.add_model(moved)
    key = asked(client).json()["key"]
    row = next(row for row in Jobs(store).rows(limit=9) if row.key == key)
    assert from_json(PlanWanted, row.request).target == moved


def test_jobs_are_listed_by_state_and_unknown_ones_are_not_there(client: TestClient) -> None:
    key = asked(client).json()["key"]
    assert [job["key"] for job in client.get("/v1/jobs", params={"state": "waiting"}).json()["items"]] == [key]
    assert client.get("/v1/jobs", params={"state": "done"}).json()["items"] == []
    assert client.get("/v1/jobs/nobody").status_code == 404
    assert client.get("/v1/jobs/nobody/events").status_code == 404


def test_a_service_whose_worker_does_not_live_is_not_ready(store: SqlStore) -> None:
    waiting = TestClient(create_app(store, ServiceSettings(auth="off", workers=1)))  # not started, so nobody works
    answer = waiting.get("/readyz")
    assert answer.status_code == 503 and "not every worker" in answer.json()["detail"]
    assert waiting.get("/healthz").status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_a_callback_swallows_is_raised_again(monkeypatch: pytest.MonkeyPatch, store: SqlStore) -> None:
    """Python ignores what is raised in the callback of a weak reference, and signals arrive anywhere."""

    class Thing:
        pass

    def ended(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)  # the handler runs here

    def plan(*_: object) -> None:
        thing = Thing()
        reference = weakref.ref(thing, ended)
        del thing
        assert reference() is None
        wait_for(lambda: False)

    job, jobs, worker = Mock(), Mock(), Worker("one")
    monkeypatch.setattr(worker, "_plan", plan)
    before = signal.signal(signal.SIGTERM, worker.on_signal)
    try:
        worker.do(job, jobs, store)
    finally:
        signal.signal(signal.SIGTERM, before)
    jobs.release.assert_called_once_with("one", "its worker was ended", counts=False)
    jobs.fail.assert_not_called()
