"""The service's answers: what is written is read again, what is wrong is refused with a reason."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from spectune.db.wire import Decision, NewPlan, OpenedProfile, Page, Visits
from spectune.planner.plans.document import plan_to_json
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit
from spectune.profiler.records.wire import from_json, to_json
from spectune.service import examples
from spectune.service.app import create_app
from spectune.service.settings import ServiceSettings

from ..support.fresh_store import fresh_store
from ..support.plans import plan_of

JSON = {"Content-Type": "application/json"}
PLAN = plan_of([(1, 100), (4, 100)])
FILED = NewPlan(
    document=plan_to_json(PLAN),
    device=PLAN.device.fingerprint,
    device_kind=PLAN.device.kind_key,
    target=PLAN.target.key,
    workload=PLAN.workload,
    temperature=PLAN.temperature,
)


@pytest.fixture
def client(tmp_path) -> Iterator[TestClient]:
    settings = ServiceSettings(auth="off", rate_per_s=0.0, workers=0, body_bytes=100_000, upload_bytes=200_000)
    with fresh_store(tmp_path) as store, TestClient(create_app(store, settings)) as opened:
        yield opened


def send(client: TestClient, path: str, record: object, **headers: str) -> Any:
    answer = client.post(path, content=to_json(record), headers={**JSON, **headers})
    assert answer.status_code < 300, answer.text
    return answer


def refused(answer: Any, status: int) -> str:
    """Return why a request was refused, after checking how it was."""
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert answer.status_code == told["status"] == status, told
    assert told["request_id"] == answer.headers["x-request-id"]
    return str(told["detail"])


def test_measurements_come_back_as_a_surface(client: TestClient) -> None:
    assert send(client, "/v1/measurements", examples.MEASUREMENTS).json() == {"added": 1}
    page = from_json(Page[LatencySurface], client.get("/v1/surfaces", params={"role": "verify"}).content)
    assert page.items == (examples.SURFACE,)
    assert client.get("/v1/surfaces", params={"role": "draft"}).json()["items"] == []


def test_a_trace_comes_back_bit_for_bit_and_without_its_recording_in_the_list(client: TestClient) -> None:
    send(client, "/v1/traces", examples.TRACE)
    (row,) = client.get("/v1/traces/rows").json()["items"]
    assert from_json(AcceptanceTrace, client.get(f"/v1/traces/{row['id']}").content) == examples.TRACE
    assert "there is no trace 99" in refused(client.get("/v1/traces/99"), 404)


def test_what_was_never_measured_is_a_404_that_says_so(client: TestClient) -> None:
    setup = {"device": "a", "target": "b", "dtype": "bfloat16"}
    assert "never measured" in refused(client.get("/v1/overheads", params=setup), 404)
    refused(client.get("/v1/pairwise", params={"model": ["a", "b"]}), 404)
    refused(client.get("/v1/models/unknown"), 404)


def test_a_device_is_kept_under_its_own_fingerprint_only(client: TestClient) -> None:
    body = to_json(examples.DEVICE)
    assert "the path says" in refused(client.put("/v1/devices/another", content=body, headers=JSON), 422)
    place = f"/v1/devices/{examples.DEVICE.fingerprint}"
    assert client.put(place, content=body, headers=JSON).status_code == 204
    assert len(client.get("/v1/devices").json()["items"]) == 1


def test_a_profile_is_resumed_where_it_stopped_and_ends_once(client: TestClient) -> None:
    opened = from_json(OpenedProfile, send(client, "/v1/profiles", examples.OPENING).content)
    place = f"/v1/profiles/{opened.profile_id}"
    send(client, f"{place}/visits", examples.VISITS)
    assert "already there" in refused(
        client.post(f"{place}/visits", content=to_json(examples.VISITS), headers=JSON), 409
    )
    assert client.put(f"{place}/parts/a/b%20%C3%A4", content="text").status_code == 204
    again = from_json(OpenedProfile, send(client, "/v1/profiles", examples.OPENING).content)
    assert again == OpenedProfile(profile_id=opened.profile_id, is_resumed=True, begun=opened.begun)
    seen = from_json(Page[Visit], client.get(f"{place}/visits").content)
    assert Visits(visits=seen.items) == examples.VISITS
    assert client.get(f"{place}/parts/a/b%20%C3%A4").text == "text"
    send(client, f"{place}/finish", examples.FINISH)
    refused(client.post(f"{place}/finish", content=to_json(examples.FINISH), headers=JSON), 409)
    refused(client.get("/v1/profiles/99/visits"), 404)


def test_a_plan_comes_back_byte_for_byte_under_its_hash(client: TestClient) -> None:
    row = send(client, "/v1/plans", FILED).json()
    answer = client.get(f"/v1/plans/{row['id']}")
    assert answer.text == FILED.document
    assert answer.headers["etag"] == f'"{hashlib.sha256(FILED.document.encode()).hexdigest()}"'
    others = ", ".join(f'"{digit * 64}"' for digit in "abc")  # of other plans
    tags = {"If-None-Match": f"{others}, {answer.headers['etag']}"}
    known = client.get(f"/v1/plans/{row['id']}", headers=tags)
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize("etag", ['W/"{}"', '"{}-gzip"', '"other", W/"{}-br"'])
def test_a_plan_is_known_by_the_tag_that_a_packing_proxy_made_of_its_own(client: TestClient, etag: str) -> None:
    row = send(client, "/v1/plans", FILED).json()
    known = {"If-None-Match": etag.format(row["content_hash"])}
    assert client.get(f"/v1/plans/{row['id']}", headers=known).status_code == 304
    other = {"If-None-Match": etag.format("0" * 64)}
    assert client.get(f"/v1/plans/{row['id']}", headers=other).status_code == 200


def test_a_plan_filed_under_another_setup_is_refused(client: TestClient) -> None:
    body = json.loads(to_json(FILED)) | {"workload": "another"}
    assert "filed under workload 'another'" in refused(client.post("/v1/plans", json=body), 422)
    assert "no plan" in refused(client.post("/v1/plans", json=body | {"document": "{}"}), 422)


def test_plans_are_promoted_retired_restored_and_rolled_back(client: TestClient) -> None:
    one, two = (send(client, "/v1/plans", FILED).json()["id"] for _ in range(2))
    setup = {"device": FILED.device, "target": FILED.target, "workload": FILED.workload}
    why = Decision(reason="validated", by="me")

    def counts() -> int:
        return int(client.get("/v1/plans/find", params=setup).json()["id"])

    assert counts() == two
    assert send(client, f"/v1/plans/{one}/promote", why).json()["state"] == "promoted"
    assert counts() == one
    send(client, f"/v1/plans/{one}/retire", why)
    refused(client.post(f"/v1/plans/{one}/promote", content=to_json(why), headers=JSON), 409)
    send(client, f"/v1/plans/{one}/restore", why)
    send(client, f"/v1/plans/{one}/promote", why)
    back = client.post("/v1/plans/rollback", json={**setup, "temperature": 0.0, "reason": "slower"})
    assert back.json()["id"] == two == counts()
    events = client.get(f"/v1/plans/{one}/events").json()["items"]
    assert [event["action"] for event in events] == ["promoted", "retired", "restored", "promoted", "retired"]
    assert (events[0]["by"], events[0]["reason"]) == ("me", "validated")


def test_a_list_is_read_page_by_page_and_nothing_is_left_out(client: TestClient) -> None:
    wanted = [send(client, "/v1/plans", FILED).json()["id"] for _ in range(5)]
    seen: list[int] = []
    after = None
    for _ in range(3):
        page = client.get("/v1/plans", params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [row["id"] for row in page["items"]]
        after = page["next"]
    assert seen == wanted and after is None


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=-1", "limit=x", "temperature=nan", "state=lost"])
def test_a_parameter_out_of_its_range_is_named(client: TestClient, query: str) -> None:
    assert query.partition("=")[0] in refused(client.get(f"/v1/plans?{query}"), 422)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"\xff", b'{"surface": 1}', b"[" * 50_000, b'{"a": NaN}', b"1" * 5000,
        b'{"document": "\\ud800"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/measurements", "/v1/plans", "/v1/resolve", "/v1/jobs"])
def test_a_body_that_is_no_record_is_refused(client: TestClient, path: str, body: bytes) -> None:
    assert refused(client.post(path, content=body, headers=JSON), 422)


@pytest.mark.parametrize("document", ["[" * 40_000, "9" * 5_000, "", "[]", '{"version": 1' + "0" * 5000 + "}"])
def test_a_hostile_plan_document_is_refused(client: TestClient, document: str) -> None:
    body = json.loads(to_json(FILED)) | {"document": document}
    assert "no plan" in refused(client.post("/v1/plans", json=body), 422)


def test_a_number_too_large_for_the_store_is_refused(client: TestClient) -> None:
    body = json.loads(to_json(examples.MEASUREMENTS))
    body["measurements"][0]["batch"] = 10**30
    assert "larger" in refused(client.post("/v1/measurements", json=body), 422)


def test_only_json_is_taken_so_that_no_foreign_form_can_write(client: TestClient) -> None:
    body = to_json(examples.MEASUREMENTS)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/v1/measurements", content=body, headers={"Content-Type": kind})
        assert "send application/json" in refused(answer, 415)


def test_a_packed_body_is_unpacked_and_its_limit_counts_unpacked_bytes(client: TestClient) -> None:
    def sent(body: bytes) -> Any:
        return client.post("/v1/measurements", content=body, headers={**JSON, "Content-Encoding": "gzip"})

    whole = gzip.compress(to_json(examples.MEASUREMENTS).encode())
    assert sent(whole).status_code == 201
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    assert "at most 100000 bytes" in refused(sent(bomb), 413)
    for damaged in (whole[:-4], whole + b"x", b"not gzip"):
        refused(sent(damaged), 422)
    assert "gzip or not" in refused(client.post("/v1/plans", headers={**JSON, "Content-Encoding": "br"}), 415)


def test_a_write_sent_twice_under_one_key_is_done_once(client: TestClient) -> None:
    for is_repeated in (None, "true"):
        answer = send(client, "/v1/measurements", examples.MEASUREMENTS, **{"Idempotency-Key": "one"})
        assert answer.headers.get("idempotent-replay") == is_repeated
    other = client.post("/v1/overheads", content=to_json(examples.OVERHEAD), headers={**JSON, "Idempotency-Key": "one"})
    assert "another request" in refused(other, 422)
    bad = client.post("/v1/plans", content=b"{}", headers={**JSON, "Idempotency-Key": "a b"})
    assert "Idempotency-Key" in refused(bad, 422)


def test_a_large_body_comes_in_parts_and_counts_as_the_request_it_stands_for(client: TestClient) -> None:
    body = to_json(FILED).encode()
    new = {"kind": "plan", "size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "target": "/v1/plans"}
    key = client.post("/v1/uploads", json=new).json()["key"]
    for begin, end in ((0, 1000), (1000, len(body))):
        answer = client.patch(f"/v1/uploads/{key}", content=body[begin:end], headers={"Upload-Offset": str(begin)})
        assert answer.json()["received"] == end
    late = client.patch(f"/v1/uploads/{key}", content=b"x", headers={"Upload-Offset": "1000"})
    assert "comes next" in refused(late, 409)
    assert client.head(f"/v1/uploads/{key}").headers["upload-offset"] == str(len(body))
    finish = f"/v1/uploads/{key}/finish"
    first, again = (client.post(finish, headers={"Idempotency-Key": "mine"}) for _ in range(2))
    assert (first.status_code, first.content) == (again.status_code, again.content) == (201, first.content)
    assert [row["id"] for row in client.get("/v1/plans").json()["items"]] == [first.json()["id"]]
    refused(client.post(finish), 404)


@pytest.mark.parametrize("target", ["/v1/plans/1/promote", "/v1/uploads", "/healthz", "/v1/../v1/plans", "x"])
def test_an_upload_stands_only_for_what_it_may(client: TestClient, target: str) -> None:
    new = {"kind": "any", "size": 1, "sha256": "0" * 64, "target": target}
    assert "cannot stand for" in refused(client.post("/v1/uploads", json=new), 422)


def test_too_many_uploads_are_put_off(client: TestClient) -> None:
    new = {"kind": "any", "size": 1, "sha256": "0" * 64, "target": "/v1/plans"}
    answers = [client.post("/v1/uploads", json=new) for _ in range(17)]
    assert {answer.status_code for answer in answers[:-1]} == {201}
    assert "16 uploads are under way" in refused(answers[-1], 429)
    assert int(answers[-1].headers["retry-after"]) > 0


def test_limits_of_uploads_hold(client: TestClient) -> None:
    new = {"kind": "any", "size": 200_001, "sha256": "0" * 64, "target": "/v1/plans"}
    assert "at most 200000" in refused(client.post("/v1/uploads", json=new), 413)


def test_unknown_paths_and_methods_are_refused_as_problems(client: TestClient) -> None:
    refused(client.get("/v1/nothing"), 404)
    answer = client.delete("/v1/plans")
    assert "Allow" in refused(answer, 405) and "GET" in answer.headers["allow"]
    refused(client.get("/v1/plans/../../etc/passwd"), 404)
    refused(client.get("/v1/plans/1' OR 1=1"), 422)


def test_a_request_keeps_the_name_it_came_with_unless_that_could_do_harm(client: TestClient) -> None:
    assert client.get("/healthz", headers={"X-Request-Id": "my-request.1"}).headers["x-request-id"] == "my-request.1"
    for harmful in ("a b", 'x"}', "x" * 65):
        assert client.get("/healthz", headers={"X-Request-Id": harmful}).headers["x-request-id"] != harmful


def test_the_document_has_an_example_of_whatever_is_sent_or_answered(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            bodies = [operation.get("requestBody", {}), *(operation["responses"][s] for s in operation["responses"])]
            for content in (content for body in bodies for content in body.get("content", {}).values()):
                assert "example" in content, (path, method)
            assert operation["description"], (path, method)


def test_every_reference_of_the_document_leads_somewhere(client: TestClient) -> None:
    text = client.get("/openapi.json").text
    document = json.loads(text)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names <= set(document["components"]["schemas"])


def test_metrics_count_requests_by_route_and_never_by_path(client: TestClient) -> None:
    for number in (1, 2):
        client.get(f"/v1/plans/{number}")
    lines = client.get("/metrics").text.splitlines()
    assert 'spectune_http_requests_total{method="GET",route="/v1/plans/{plan_id}",status="404"} 2.0' in lines
    assert any(line.startswith("spectune_http_request_duration_seconds_count") for line in lines)
