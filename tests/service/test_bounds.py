"""What one request may cost: no list, surface, stream or sign-in takes more than its share of the service."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from pkgutil import resolve_name
from threading import Timer
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from starlette.requests import Request
from starlette.testclient import TestClient

from spectune.db.jobs.access import Tokens
from spectune.db.jobs.jobs import Jobs
from spectune.db.remote.remote_store import RemoteStore
from spectune.db.remote.service import Params
from spectune.db.remote.transport import RefusedError
from spectune.db.rows import CellRuns, RecordPlaces, Records
from spectune.db.sql.service_tables import UploadTable
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import service_url
from spectune.db.wire import Resolving
from spectune.errors import PlanError, StoreError
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json, to_json
from spectune.service import examples, plans, routes, writes
from spectune.service.app import create_app
from spectune.service.body import read_body
from spectune.service.problem import ProblemError
from spectune.service.resolver import ParsedPlans
from spectune.service.settings import ServiceSettings

from ..support.filled_service import PLAN, add_plan
from ..support.fresh_store import fresh_store
from ..support.lossy_runs import QUALITY, WAY
from ..support.served_store import ServedStore, served_store
from ..support.synthetic import DEVICE

KEY = SurfaceKey(device="one", model="model", role="verify", regime="eager", dtype="float32")
KEYS = [KEY, replace(KEY, role="draft"), replace(KEY, device="other"), replace(KEY, attention="flash")]
OPEN = ServiceSettings(auth="off", rate_per_s=0.0, workers=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedStore]:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    with served_store(tmp_path) as running:
        yield running


def add_cells(store: SqlStore | RemoteStore) -> None:
    for key in KEYS:
        cells = [Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=(1.0,)) for tokens in (1, 2)]
        store.add_measurements(key, cells)


def test_surfaces_too_many_for_one_answer_come_one_by_one(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_cells(served.behind)
    monkeypatch.setattr("spectune.service.routes.MOST_TIMINGS", 2)
    with RemoteStore(service_url(served.url)) as store:
        assert store.surfaces() == served.behind.surfaces()
        assert store.surfaces("one", role="verify") == served.behind.surfaces("one", role="verify")
        assert store.surfaces(attention="") == served.behind.surfaces(attention="")
        monkeypatch.setattr("spectune.service.routes.MOST_TIMINGS", 1)
        with pytest.raises(RefusedError, match="2 timings, more than 1"):
            store.surfaces("other")


def test_timings_that_newer_ones_supersede_make_no_surface_too_large(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        add_cells(served.behind)
    monkeypatch.setattr("spectune.service.routes.MOST_TIMINGS", 2)
    with RemoteStore(service_url(served.url)) as store:
        assert store.surfaces("other") == served.behind.surfaces("other")


def test_large_uploads_are_finished_as_small_ones_are(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.service.uploads.LARGE_BYTES", 0)
    monkeypatch.setattr("spectune.db.remote.service.MOST_BODY_BYTES", 300)  # so that some go as uploads
    with RemoteStore(service_url(served.url)) as store:
        add_cells(store)
    assert [len(surface.measurements) for surface in served.behind.surfaces()] == [2, 2, 2, 2]
    with served.behind._reading() as session:
        assert session.scalar(select(func.count()).select_from(UploadTable).where(UploadTable.ended.is_not(None))) == 4


def test_what_became_of_a_plan_comes_in_pages_of_its_own(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [add_plan(served.behind, PLAN) for _ in range(2)]
    for number in range(5):
        for plan_id in plans:
            served.behind.add_observation(plan_id, f"{plan_id} saw {number}")
            served.behind.add_validation(plan_id, f"{plan_id} gave {number}")
    monkeypatch.setattr("spectune.db.remote.service.MOST_ITEMS", 2)
    with RemoteStore(service_url(served.url)) as store:
        for plan_id in plans:
            assert store.observations(plan_id) == [f"{plan_id} saw {number}" for number in range(5)]
            assert store.validations(plan_id) == [f"{plan_id} gave {number}" for number in range(5)]
    assert served.behind.newest_observations(plans[0], 2) == ["1 saw 3", "1 saw 4"]


def test_the_newest_observations_are_one_question(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id, expected = add_plan(served.behind, PLAN), ["saw 3", "saw 4"]
    for number in range(5):
        served.behind.add_observation(plan_id, f"saw {number}")
    monkeypatch.setattr("spectune.db.remote.service.MOST_ITEMS", 2)
    with RemoteStore(service_url(served.url)) as store:
        asked, get = list[Params](), store._service.get

        def noted(kind: type[Any], path: str, params: Params) -> Any:
            asked.append(params)
            return get(kind, path, params)

        monkeypatch.setattr(store._service, "get", noted)
        assert store.newest_observations(plan_id, 2) == expected and len(asked) == 1
        assert store.newest_observations(plan_id, 9) == [f"saw {number}" for number in range(5)]
        with pytest.raises(StoreError, match="no plan 99"):
            store.newest_observations(99, 2)


def test_the_newest_jobs_come_newest_first(store: SqlStore) -> None:
    jobs = Jobs(store)
    made = [jobs.add("plan", "{}", "ci").key for _ in range(4)]
    assert [row.key for row in jobs.newest(3)] == made[:0:-1]


def test_a_stream_ends_when_its_token_is_revoked(store: SqlStore) -> None:
    tokens, job = Tokens(store), Jobs(store).add("plan", "{}", "ci")
    headers = {"Authorization": f"Bearer {tokens.create('ci', 'read')}"}
    with TestClient(create_app(store, ServiceSettings(workers=0, fresh_s=0.01))) as client:
        revoking = Timer(0.2, tokens.revoke, ["ci"])
        revoking.start()
        answer = client.get(f"/v1/jobs/{job.key}/events", headers=headers)  # the job waits for ever
        revoking.join()
        assert answer.status_code == 200 and answer.text.count("event: progress") == 1
        assert client.get("/v1/jobs", headers=headers).status_code == 401
        assert client.app.state.service.streams == 0  # type: ignore[attr-defined]  # an application of FastAPI


def test_signing_in_does_not_ask_the_database_each_time(store: SqlStore) -> None:
    token = Tokens(store).create("person", "read")
    with TestClient(create_app(store, ServiceSettings(workers=0, fresh_s=60.0)), follow_redirects=False) as client:
        callers = client.app.state.service.callers  # type: ignore[attr-defined]  # an application of FastAPI
        before = callers._read_at
        for _ in range(3):
            assert client.post("/sign-in", data={"token": token}).status_code == 303
        assert callers._read_at == before
        assert client.post("/sign-in", data={"token": "x" * 5000}).status_code == 413


def test_surfaces_are_listed_page_by_page_and_none_is_read(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cells(served.behind)
    monkeypatch.setattr("spectune.db.remote.service.MOST_ITEMS", 3)
    monkeypatch.setattr(RemoteStore, "surfaces", None)
    with RemoteStore(service_url(served.url)) as store:
        rows = store.surface_rows()
        assert rows == served.behind.surface_rows()
        assert [row.key for row in rows] == KEYS
        assert store.surface_rows(limit=1, after=rows[0].id) == rows[1:2]
        assert [row.device for row in store.surface_rows(device="other")] == ["other"]


def test_records_are_answered_by_their_places_whatever_their_size(store: SqlStore) -> None:
    cells = [Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=(1.0,)) for tokens in range(1, 200)]
    store.add_measurements(KEY, cells[50:60])
    key = {field.name: getattr(KEY, field.name) for field in fields(KEY)}
    sent = Records(surfaces=(LatencySurface(**key, measurements=tuple(cells)),))
    with TestClient(create_app(store, OPEN)) as client:
        for place in ("/v1/records/missing", "/v1/records"):
            answer = client.post(place, content=to_json(sent), headers={"Content-Type": "application/json"})
            assert from_json(RecordPlaces, answer.content).cells == (CellRuns(surface=0, runs=((0, 50), (60, 199))),)
    assert store.surfaces()[0].measurements == tuple(cells)


def test_who_comes_when_too_many_wait_is_told_to_come_again(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.service.state.MOST_WAITING", 0)
    with TestClient(create_app(store, OPEN)) as client:
        for answer in (client.get("/v1/plans"), client.get("/")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["type"].endswith("busy")
        assert client.get("/healthz").status_code == 200


def test_parsed_plans_are_few_and_keep_one_cell() -> None:
    texts = [plan_to_json(replace(PLAN, provenance=replace(PLAN.provenance, notes=(note,)))) for note in "abcde"]
    parsed = ParsedPlans(3)
    for text in (*texts, texts[-1]):
        plan = plan_from_json(text)
        assert parsed.parse(text) == replace(plan, cells=plan.cells[:1])
        assert 0 < len(parsed) <= 3
    assert parsed.parse(texts[-1]) is parsed.parse(texts[-1])
    with pytest.raises(PlanError):
        parsed.parse("{}")


def test_a_parsed_plan_stays_lossy() -> None:
    """A plan's version says so, and must agree with the cell that is kept."""
    lossless = PLAN.cells[0]
    lossy = replace(
        lossless,
        context=lossless.context + 1,
        policy=WAY,
        drafter="small",
        run_tokens=tuple(range(WAY.max_verify_tokens + 1)),
        run_ms=(),
        quality=QUALITY,
    )
    drafters = (*PLAN.drafters, ("small", PLAN.target))
    plan = replace(PLAN, cells=(lossless, lossy), drafters=drafters, version=0)
    kept = ParsedPlans(1).parse(plan_to_json(plan))
    assert (kept.cells, kept.version, kept.is_lossy) == ((lossy,), plan.version, True)


def test_nothing_is_taken_behind_the_end_of_a_packed_body() -> None:
    pieces = iter([gzip.compress(b"{}"), *[b"x" * 65536] * 100])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    request = Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive)
    with pytest.raises(ProblemError, match="more follows"):
        asyncio.run(read_body(request, ServiceSettings()))
    assert len(list(pieces)) == 99


@pytest.mark.parametrize(
    ("reading", "path"),
    [
        ("spectune.service.callers.Tokens.rows", "/v1/plans"),
        ("spectune.service.plan_index.news_of", "/v1/resolve?device=a&target=b"),
        ("spectune.service.remembered.schema_of", "/readyz"),
    ],
    ids=["tokens", "plans", "readiness"],
)
def test_many_who_ask_at_once_share_a_reading(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, reading: str, path: str
) -> None:
    read, readings = resolve_name(reading), 0

    def slowly(*about: Any) -> Any:
        nonlocal readings
        readings += 1
        time.sleep(0.02)
        return read(*about)

    async def ask() -> None:
        transport = httpx.ASGITransport(create_app(store, OPEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            unknown = [{"Authorization": f"Bearer x{number}"} for number in range(40)]
            await asyncio.gather(*(client.get(path, headers=token) for token in unknown))

    monkeypatch.setattr(reading, slowly)
    asyncio.run(ask())
    assert 1 <= readings <= 6


def test_strangers_are_let_ask_as_often_as_one_token_and_after_health_always(store: SqlStore) -> None:
    strangers = {"/v1/plans": 401, "/sign-in": 200}
    for path, status in strangers.items():
        with TestClient(create_app(store, ServiceSettings(workers=0, rate_per_s=0.01, burst=3))) as client:
            answers = [client.get(path, headers={"Authorization": f"Bearer x{number}"}) for number in range(4)]
            assert [answer.status_code for answer in answers] == [status, status, status, 429]
            assert [client.get(health).status_code for health in ("/healthz", "/readyz")] == [200, 200]


def test_long_records_are_written_where_nobody_waits_for_them(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_trace(examples.TRACE)
    plan_id = add_plan(store, PLAN)
    is_on_loop = []

    def receipt_of(*about: Any, **more: Any) -> Any:
        is_on_loop.append(asyncio._get_running_loop() is not None)
        return writes.receipt_of(*about, **more)

    for module in (routes, plans):
        monkeypatch.setattr(module, "receipt_of", receipt_of)
    with TestClient(create_app(store, OPEN)) as client:
        for path in ("traces/1", f"plans/{plan_id}/observations", f"plans/{plan_id}/validations"):
            assert client.get(f"/v1/{path}").status_code == 200
    assert is_on_loop == [False, False, False]


def test_a_question_is_short(store: SqlStore) -> None:
    long = {**json.loads(to_json(Resolving(device=DEVICE, target="x"))), "workload": "x" * 300_000}
    with TestClient(create_app(store, OPEN)) as client:
        answer = client.post("/v1/resolve", json=long)
    assert answer.status_code == 413 and "send less" in answer.json()["detail"]
