"""Who is let in: with which token, how often, under which name, and what no answer or log ever tells."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from spectune.db.jobs.access import Scope, Tokens
from spectune.db.sql.sql_store import SqlStore
from spectune.profiler.records.wire import to_json
from spectune.service import examples
from spectune.service.app import create_app
from spectune.service.log import JsonLines
from spectune.service.settings import ServiceSettings
from spectune.service.state import Buckets

from ..support.fresh_store import fresh_store

JSON = {"Content-Type": "application/json"}
SETTINGS = ServiceSettings(workers=0, fresh_s=0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def client(store: SqlStore) -> Iterator[TestClient]:
    with TestClient(create_app(store, SETTINGS)) as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def statuses(client: TestClient, token: str) -> list[int]:
    """Return how reading, writing and deciding are answered."""
    headers = {**JSON, **bearer(token)}
    body, why = to_json(examples.MEASUREMENTS), to_json(examples.DECISION)
    return [
        client.get("/v1/plans", headers=headers).status_code,
        client.post("/v1/measurements", content=body, headers=headers).status_code,
        client.post("/v1/plans/9/promote", content=why, headers=headers).status_code,
    ]


@pytest.mark.parametrize(
    ("scope", "answers"), [("read", [200, 403, 403]), ("write", [200, 201, 403]), ("admin", [200, 201, 404])]
)
def test_a_token_allows_what_its_scope_says(
    client: TestClient, store: SqlStore, scope: Scope, answers: list[int]
) -> None:
    assert statuses(client, Tokens(store).create("any", scope)) == answers


@pytest.mark.parametrize("path", ["9/promote", "9/retire", "9/restore", "rollback"])
@pytest.mark.parametrize("end", ["%0A", "%0D%0A", "%00", "%C2%85"])
def test_a_control_character_makes_no_path_one_of_a_lower_scope(
    client: TestClient, store: SqlStore, path: str, end: str
) -> None:
    headers = {**JSON, **bearer(Tokens(store).create("any", "write"))}
    whole = client.post(f"/v1/plans/{path}", content="{}", headers=headers)
    answer = client.post(f"/v1/plans/{path}{end}", content="{}", headers=headers)
    assert (whole.status_code, answer.status_code) == (403, 404)
    assert "control character" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["", "x", "spt_" + "A" * 43, "\xff\x00", "spt_" * 10_000])
def test_nobody_is_let_in_by_a_token_that_was_not_made(client: TestClient, store: SqlStore, token: str) -> None:
    Tokens(store).create("any", "admin")
    headers = {"Authorization": f"Bearer {token}".encode("latin-1")}
    answer = client.get("/v1/plans", headers=headers)  # type: ignore[arg-type]  # bytes are sent as they are
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_revoked_token_is_refused_by_a_service_that_knew_it(client: TestClient, store: SqlStore) -> None:
    token = Tokens(store).create("ci", "read")
    assert client.get("/v1/plans", headers=bearer(token)).status_code == 200
    Tokens(store).revoke("ci")
    while client.get("/v1/plans", headers=bearer(token)).status_code == 200:
        pass  # what it knows is a hundredth of a second old at most
    assert client.get("/v1/plans", headers=bearer(token)).status_code == 401


def test_only_health_is_told_to_anybody(client: TestClient) -> None:
    told = {path: client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1")}
    assert told == {"/healthz": 200, "/readyz": 200, "/metrics": 401, "/openapi.json": 401, "/v1": 401}


def test_a_store_without_tokens_is_open_until_it_has_one(store: SqlStore) -> None:
    settings = ServiceSettings(auth="when-tokens-exist", workers=0, fresh_s=0.01)
    with TestClient(create_app(store, settings)) as client:
        assert client.get("/v1/plans").status_code == 200
        Tokens(store).create("first", "read")
        while client.get("/v1/plans").status_code == 200:
            pass
        assert client.get("/v1/plans").status_code == 401


def test_a_page_of_another_name_cannot_ask_a_service_without_tokens(store: SqlStore) -> None:
    settings = ServiceSettings(auth="off", workers=0, hosts=("localhost", "127.0.0.1", "[::1]"))
    with TestClient(create_app(store, settings)) as client:
        for host, status in (("localhost:8321", 200), ("[::1]:8321", 200), ("evil.example", 421), ("", 421)):
            assert client.get("/v1/plans", headers={"Host": host}).status_code == status


def test_the_cookie_of_a_browser_opens_pages_and_never_the_api(client: TestClient, store: SqlStore) -> None:
    cookie = {"Cookie": f"spectune_token={Tokens(store).create('me', 'read')}"}
    assert client.get("/", headers=cookie).status_code == 200
    assert client.get("/v1/plans", headers=cookie).status_code == 401
    away = client.get("/plans", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (away.status_code, away.headers["location"]) == (303, "/sign-in?next=/plans")


def test_neither_answers_nor_logs_tell_a_token(
    client: TestClient, store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    token = Tokens(store).create("ci", "read")
    with caplog.at_level(logging.INFO, logger="spectune.service"):
        answers = [client.get("/v1/plans", headers=bearer(token)), client.post("/v1/plans", headers=bearer(token))]
        answers.append(client.get("/v1/plans", headers=bearer(token + "x")))
    lines = "\n".join(JsonLines().format(record) for record in caplog.records)
    assert '"caller": "ci"' in lines and '"request_id"' in lines
    assert token[4:] not in lines + "".join(answer.text + str(answer.headers) for answer in answers)


def test_too_many_requests_of_one_token_are_put_off_and_others_are_not(store: SqlStore) -> None:
    one, other = (Tokens(store).create(name, "read") for name in ("one", "other"))
    with TestClient(create_app(store, ServiceSettings(workers=0, rate_per_s=0.01, burst=3))) as client:
        answers = [client.get("/v1", headers=bearer(one)) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
        assert client.get("/v1", headers=bearer(other)).status_code == 200


def test_a_bucket_fills_at_its_rate_and_no_further_than_its_size() -> None:
    buckets = Buckets(2.0, 4)
    assert [buckets.wait_s("me", 0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert [buckets.wait_s("me", 0.5), buckets.wait_s("me", 0.5)] == [0.0, 0.5]
    assert [buckets.wait_s("me", 1000.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
