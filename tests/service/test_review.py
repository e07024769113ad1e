"""What an adversary tries: one write many times at once, others' keys, bombs, a service killed under load."""

from __future__ import annotations

import gzip
import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, text

from spectune.db.jobs.access import Tokens
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.plans.document import plan_to_json
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.wire import to_json

from ..support.filled_service import PLAN, FilledService, add_plan, filled_service, is_problem, keys_of, new_plan
from ..support.synthetic import DEVICE, TARGET

KEY = SurfaceKey(device=DEVICE.fingerprint, model=TARGET.key, role="verify", regime="eager", dtype="float32")
SETUP = {name: value for name, value in keys_of(PLAN).items() if name != "device_kind"}
AT_ONCE = 8
WAIT_S = 60.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FilledService]:
    """Return a service of the test's own."""
    with filled_service(tmp_path) as filled:
        yield filled


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledService]:
    """Return a service for tests that do not mind what others wrote."""
    with filled_service(tmp_path_factory.mktemp("shared")) as filled:
        yield filled


def cell(number: int) -> Measurement:
    return Measurement(batch=1, context_tokens=number, tokens=1, repeats_ms=(1.0 + number,))


def body_of(number: int) -> dict[str, Any]:
    return {"surface": json.loads(to_json(KEY)), "measurements": [json.loads(to_json(cell(number)))]}


def stored(service: FilledService, number: int) -> int:
    """Count the rows of a cell, past spectune's own reading of them."""
    with closing(sqlite3.connect(service.store.url.removeprefix("sqlite:///"))) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM spectune_measurement WHERE document = ?", (to_json(cell(number)),)
        ).fetchone()
    return int(count)


def test_one_write_sent_many_times_at_once_is_kept_once_and_answered_alike(shared: FilledService) -> None:
    headers = {"Idempotency-Key": "one"}

    def send(_: int) -> tuple[int, str]:
        answer = shared.client.post("/v1/measurements", json=body_of(900), headers=headers)
        return answer.status_code, answer.text

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(send, range(AT_ONCE)))
    assert set(answers) == {(201, '{"added":1}')}
    assert stored(shared, 900) == 1


def test_a_write_that_is_refused_leaves_no_receipt_behind(shared: FilledService) -> None:
    headers = {"Idempotency-Key": "refused"}
    wrong = body_of(901)
    wrong["measurements"][0]["repeats_ms"] = []
    assert shared.client.post("/v1/measurements", json=wrong, headers=headers).status_code == 422
    assert shared.client.post("/v1/measurements", json=body_of(901), headers=headers).status_code == 201
    assert stored(shared, 901) == 1


def test_plans_added_at_once_have_versions_without_gaps(service: FilledService) -> None:
    before = len(service.store.plans(workload=PLAN.workload))

    def add(number: int) -> int:
        origin = replace(PLAN.provenance, notes=(f"plan {number}",))
        document = plan_to_json(replace(PLAN, provenance=origin))
        answer = service.client.post("/v1/plans", json=new_plan(document))
        return int(answer.json()["version"])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        versions = sorted(pool.map(add, range(AT_ONCE)))
    assert versions == list(range(before + 1, before + 1 + AT_ONCE))


def test_plans_that_are_rolled_back_at_once_are_each_retired_once(service: FilledService) -> None:
    for _ in range(AT_ONCE):
        add_plan(service.store, PLAN)

    def roll_back(_: int) -> int:
        return int(service.client.post("/v1/plans/rollback", json={**SETUP, "reason": "worse"}).status_code)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = list(pool.map(roll_back, range(AT_ONCE)))
    assert statuses == [200] * AT_ONCE
    retired = [row.id for row in service.store.plans(state="retired")]
    assert len(retired) == len(set(retired)) == AT_ONCE


def test_whoever_was_told_of_a_change_resolves_to_it_at_once(service: FilledService) -> None:
    newer = add_plan(service.store, replace(PLAN, provenance=replace(PLAN.provenance, notes=("newer",))))
    query = {"device": DEVICE.fingerprint, "target": TARGET.key, "workload": PLAN.workload}

    def resolved() -> int:
        return int(service.client.get("/v1/resolve", params=query).json()["plan_id"])

    seen = []
    for change in ("promote", "retire", "restore", "promote"):
        assert service.client.post(f"/v1/plans/{newer}/{change}", json={"reason": "a test"}).status_code == 200
        seen.append((change, resolved() == newer))
    assert seen == [("promote", True), ("retire", False), ("restore", False), ("promote", True)]


def test_the_tag_of_a_resolved_plan_changes_with_the_answer(service: FilledService) -> None:
    query = {"device": DEVICE.fingerprint, "target": TARGET.key, "workload": PLAN.workload}
    tag = service.client.get("/v1/resolve", params=query).headers["etag"]
    headers = {"If-None-Match": tag}
    assert service.client.get("/v1/resolve", params=query, headers=headers).status_code == 304
    newer = replace(PLAN, provenance=replace(PLAN.provenance, notes=("newer",)))
    service.client.post("/v1/plans", json=new_plan(plan_to_json(newer), newer))
    first = service.store.plans()[0].id
    service.client.post(f"/v1/plans/{first}/retire", json={"reason": "a test"})
    answer = service.client.get("/v1/resolve", params=query, headers=headers)
    assert answer.status_code == 200 and answer.headers["etag"] != tag


def test_a_bomb_of_zeros_is_refused_before_it_is_unpacked(shared: FilledService) -> None:
    bomb = gzip.compress(b"0" * 64 * 2**20)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = shared.client.post("/v1/measurements", content=bomb, headers=headers)
    assert answer.status_code == 413 and is_problem(answer)


@pytest.mark.parametrize(
    "target", ["/v1/tokens", "/v1/plans/1/promote", "http://169.254.169.254/", "/v1/../v1/traces", "/v1/traces?x=1", ""]
)
def test_an_upload_stands_for_nothing_but_what_is_listed(shared: FilledService, target: str) -> None:
    new = {"kind": "x", "size": 1, "sha256": "0" * 64, "target": target}
    answer = shared.client.post("/v1/uploads", json=new, headers=shared.headers("write"))
    assert answer.status_code == 422 and is_problem(answer)


def test_an_upload_is_seen_by_the_token_that_began_it_alone(shared: FilledService) -> None:
    new = {"kind": "trace", "size": 1, "sha256": "0" * 64, "target": "/v1/traces"}
    key = shared.client.post("/v1/uploads", json=new, headers=shared.headers("write")).json()["key"]
    assert shared.client.get(f"/v1/uploads/{key}", headers=shared.headers("write")).status_code == 200
    assert shared.client.get(f"/v1/uploads/{key}").status_code == 404
    assert shared.client.delete(f"/v1/uploads/{key}").status_code == 404


def test_no_log_and_no_refusal_repeats_a_token(shared: FilledService, caplog: pytest.LogCaptureFixture) -> None:
    secrets = [*shared.tokens.values(), "spt_" + "B" * 43]
    told = []
    with caplog.at_level(logging.DEBUG):
        for secret in secrets:
            headers = {"Authorization": f"Bearer {secret}", "Cookie": f"spectune_token={secret}"}
            for path in ("/v1/plans", "/v1/plans/x", "/", "/v1/resolve", "/nothing", f"/v1/plans?token={secret}"):
                told.append(shared.client.get(path, headers=headers).text)
            told.append(shared.client.post("/v1/measurements", content=b"{", headers=headers).text)
    own = [record for record in caplog.records if not record.name.startswith("httpx")]  # the client tells its own
    told += [f"{record.getMessage()} {record.__dict__}" for record in own]
    assert len(told) > 2 * len(secrets)
    assert not [line for line in told for secret in secrets if secret in line]


def test_surfaces_of_one_model_are_read_without_looking_at_all_measurements(tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []
    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store:
        store.add_measurements(KEY, [cell(1)])
        event.listen(store._reader, "before_cursor_execute", lambda *seen: asked.append((seen[2], seen[3])))
        store.surfaces(KEY.device, KEY.model)
        with store._reader.connect() as connection:
            plans = [
                row[3]
                for statement, values in asked[:]
                if statement.startswith("SELECT")
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            ]
    assert plans
    assert not [step for step in plans if step.startswith("SCAN spectune_measurement")]


def test_tables_of_measurements_refuse_to_be_changed_by_any_statement(shared: FilledService) -> None:
    changes = (
        "UPDATE spectune_measurement SET batch = 2",
        "DELETE FROM spectune_measurement",
        "UPDATE spectune_plan SET document = 'x'",
        "DELETE FROM spectune_plan_event",
    )
    before = len(shared.store.surfaces()[0].measurements)
    for change in changes:
        with pytest.raises(Exception, match="append-only"), shared.store._writing() as session:
            session.execute(text(change))
    assert len(shared.store.surfaces()[0].measurements) == before


class Served:
    """`spectune serve` as a process that can be killed."""

    def __init__(self, place: Path, port: int) -> None:
        command = [sys.executable, "-m", "spectune", "serve", "--store", str(place), "--port", str(port)]
        self._log = place.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, "--workers", "0"], stdout=log, stderr=log, env=os.environ)
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(self._log.read_text())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_service_that_is_killed_under_load_loses_nothing_it_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    place, port = tmp_path / "store.db", free_port()
    with SqlStore(resolve_url(str(place))) as store:
        token = Tokens(store).create("writer", "write")
    numbers = iter(range(100_000))
    acknowledged: list[int] = []
    is_over = threading.Event()

    def write_until_acknowledged(client: httpx.Client, number: int) -> None:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"cell-{number}"}
        while True:
            try:
                answer = client.post("/v1/measurements", json=body_of(number), headers=headers)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            assert answer.status_code == 201
            acknowledged.append(number)
            return

    def write() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while not is_over.is_set():
                write_until_acknowledged(client, next(numbers))

    def wait_for(count: int) -> None:
        end = time.monotonic() + WAIT_S
        while len(acknowledged) < count and time.monotonic() < end:
            time.sleep(0.01)

    served = Served(place, port)
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write) for _ in range(4)]
        wait_for(20)
        served.kill()
        before = len(acknowledged)
        served = Served(place, port)
        wait_for(before + 20)
        is_over.set()
        for writer in writers:
            writer.result()
    served.kill()
    with closing(sqlite3.connect(place)) as connection:
        rows = [row[0] for row in connection.execute("SELECT context_tokens FROM spectune_measurement")]
    assert len(acknowledged) >= before + 20 >= 40
    assert sorted(rows) == sorted(acknowledged)
