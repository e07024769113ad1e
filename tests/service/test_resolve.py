"""Resolve: the answer of the ladder, kept until the plans change, and only so long."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spectune.db.sql.documents import row_of
from spectune.db.sql.sql_store import SqlStore
from spectune.errors import NoPlanError, StoreError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.profiler.records.wire import to_json
from spectune.runtime.device_match import Wanted, find_plan
from spectune.service.app import create_app
from spectune.service.plan_index import ANY, PlanIndex
from spectune.service.resolver import Question, Resolver
from spectune.service.settings import ServiceSettings

from ..support.fresh_store import fresh_store
from ..support.plans import plan_of

JSON = {"Content-Type": "application/json"}
PLAN = plan_of([(1, 100)])
OTHER = replace(PLAN.device, libraries=(("torch", "0.1"),))  # of the same kind
SIBLING = replace(PLAN.device, driver="1.0")  # likewise
FOREIGN = replace(PLAN.device, name="Another processor")  # of another kind, and not near
NEAR = replace(PLAN.device, memory_bytes=2 * PLAN.device.memory_bytes)  # of another kind, and near
SETUP = {"device": PLAN.device.fingerprint, "target": PLAN.target.key, "workload": PLAN.workload, "temperature": "0"}


def keep(store: SqlStore, plan: Plan = PLAN) -> int:
    return store.add_plan(
        plan_to_json(plan),
        device=plan.device.fingerprint,
        device_kind=plan.device.kind_key,
        target=plan.target.key,
        workload=plan.workload,
        temperature=plan.temperature,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        opened.add_device(PLAN.device)
        opened.add_device(OTHER)
        opened.add_model(PLAN.target)
        yield opened


@pytest.fixture
def client(store: SqlStore) -> Iterator[TestClient]:
    with TestClient(create_app(store, ServiceSettings(auth="off", workers=0, fresh_s=0.01))) as opened:
        yield opened


def resolved(client: TestClient, **query: str) -> Any:
    return client.get("/v1/resolve", params={**SETUP, **query})


def until(client: TestClient, plan_id: int) -> None:
    """Ask until another process's write is seen; that takes a hundredth of a second."""
    while resolved(client).json().get("plan_id") != plan_id:
        pass


def test_the_answer_is_the_ladder_s_with_the_plan_as_it_was_stored(client: TestClient, store: SqlStore) -> None:
    keep(store)
    until(client, 1)
    answer = resolved(client).json()
    wanted = Wanted(target=PLAN.target, device=PLAN.device, workload=PLAN.workload, temperature=0.0)
    found = find_plan(store, wanted)
    assert (answer["plan_id"], answer["rung"], answer["passed"]) == (found.plan_id, "this device", [])
    assert answer["plan"] == json.loads(store.plan(found.plan_id))
    assert answer["match"] == {"grade": "same", "differences": []}


def test_another_device_of_the_kind_is_told_how_it_differs(client: TestClient, store: SqlStore) -> None:
    keep(store)
    until(client, 1)
    answer = resolved(client, device=OTHER.fingerprint).json()
    assert answer["rung"] == "same kind of device"
    assert answer["match"]["grade"] == "same-kind"
    assert {one["field"] for one in answer["match"]["differences"]} >= {"torch"}


def test_a_device_the_store_does_not_know_describes_itself(client: TestClient, store: SqlStore) -> None:
    keep(store)
    until(client, 1)
    stranger = replace(PLAN.device, driver="1.0")
    assert resolved(client, device=stranger.fingerprint).status_code == 404
    body = {"device": json.loads(to_json(stranger)), "target": PLAN.target.key, "workload": PLAN.workload}
    answer = client.post("/v1/resolve", json=body)
    assert answer.json()["rung"] == "same kind of device" and answer.headers["etag"]


@pytest.mark.parametrize("field", ["target", "workload", "dtype"])
def test_what_is_asked_for_has_a_name_and_no_novel(client: TestClient, store: SqlStore, field: str) -> None:
    body = {"device": json.loads(to_json(PLAN.device)), "target": PLAN.target.key, field: "x" * 121}
    answer = client.post("/v1/resolve", json=body)
    assert answer.status_code == 422 and "at most 120 characters, got 121" in answer.text


def test_an_unchanged_answer_is_not_sent_again(client: TestClient, store: SqlStore) -> None:
    keep(store)
    until(client, 1)
    tag = resolved(client).headers["etag"]
    for sent in (tag, tag, f"W/{tag}"):  # found anew, from memory, and through a proxy that packs answers
        again = client.get("/v1/resolve", params=SETUP, headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)


def test_a_new_plan_of_this_service_counts_at_once(client: TestClient, store: SqlStore) -> None:
    body = {"document": plan_to_json(PLAN), **{**SETUP, "temperature": 0.0}, "device_kind": PLAN.device.kind_key}
    for wanted in (1, 2, 3):
        assert client.post("/v1/plans", json=body).status_code == 201
        assert resolved(client).json()["plan_id"] == wanted
    why = {"reason": "better"}
    for plan_id, action, counts in ((1, "promote", 1), (2, "promote", 2), (2, "retire", 1), (1, "retire", 3)):
        assert client.post(f"/v1/plans/{plan_id}/{action}", json=why).status_code == 200
        assert resolved(client).json()["plan_id"] == counts


def test_what_another_process_writes_is_seen_soon(client: TestClient, store: SqlStore) -> None:
    for plan_id in (1, 2):
        keep(store)
        until(client, plan_id)
    store.promote_plan(1, "somebody", "better")
    until(client, 1)
    store.retire_plan(1, "somebody", "worse")
    until(client, 2)


def test_no_plan_is_a_404_that_names_the_setup(client: TestClient) -> None:
    answer = resolved(client)
    assert answer.status_code == 404
    assert answer.json()["type"].endswith("no-plan")
    assert PLAN.target.key in answer.json()["detail"]


def test_a_plan_for_the_number_format_that_is_named_goes_first(client: TestClient, store: SqlStore) -> None:
    keep(store, replace(PLAN, dtype="bfloat16"))
    keep(store)
    until(client, 2)
    found = {dtype: resolved(client, dtype=dtype).json()["plan_id"] for dtype in ("float32", "bfloat16", "float16")}
    assert found == {"float32": 2, "bfloat16": 1, "float16": 2}


def test_plans_of_which_none_can_be_used_are_a_409_that_says_why(client: TestClient, store: SqlStore) -> None:
    kept: dict[str, Any] = {**SETUP, "temperature": 0.0, "device_kind": PLAN.device.kind_key}
    store.add_plan("{}", **kept)
    while (answer := resolved(client)).status_code == 404:
        pass  # until another process's write is seen
    assert answer.status_code == 409 and "none can be used: plan 1: the plan lacks" in answer.json()["detail"]


def test_answers_in_memory_never_grow_beyond_their_limit(store: SqlStore) -> None:
    keep(store)
    index = PlanIndex(store)
    index.refresh()
    asked = [
        Question(
            device=replace(PLAN.device, driver=str(number)), target=PLAN.target.key, workload=None, temperature=0.0
        )
        for number in range(6)
    ]
    room = 3 * (len(Resolver(store, index, 10**9).answer(asked[0]).body) + 2000)
    resolver = Resolver(store, index, room)
    for one in asked:
        resolver.answer(one)
        assert 0 < resolver.kept_bytes <= room


def test_the_index_forgets_what_the_store_no_longer_holds(store: SqlStore) -> None:
    index = PlanIndex(store)
    for _ in range(3):
        keep(store)
    index.refresh()
    with store._writing() as session:
        session.connection().exec_driver_sql("INSERT INTO spectune_door (created) VALUES ('now')")
        session.connection().exec_driver_sql("DELETE FROM spectune_plan WHERE id = 2")
        session.connection().exec_driver_sql("DELETE FROM spectune_door")
    changes = index.changes(PLAN.target.key, (ANY,))
    index.refresh()
    assert [row.id for row in index.counting(PLAN.target.key, (ANY,))] == [1, 3]
    assert index.changes(PLAN.target.key, (ANY,)) > changes


def test_a_target_without_a_plan_that_fits_is_climbed_for_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store)
    index = PlanIndex(store)
    index.refresh()
    resolver, read, plan_of_store = Resolver(store, index, 10**9), list[int](), store.plan

    def counted(plan_id: int) -> str:
        read.append(plan_id)
        return plan_of_store(plan_id)

    monkeypatch.setattr(store, "plan", counted)
    asked = Question(device=FOREIGN, target=PLAN.target.key, workload=None, temperature=0.0)
    for _ in range(3):
        with pytest.raises(NoPlanError, match="are too far"):
            resolver.answer(asked)
    assert read == [1]
    resolver.remember(b"query", asked)
    assert resolver.ready(b"query") is None
    keep(store, replace(PLAN, device=FOREIGN))
    index.refresh()
    assert json.loads(resolver.answer(asked).body)["rung"] == "this device"


def test_a_plan_of_another_device_leaves_this_device_s_answer_in_memory(store: SqlStore) -> None:
    keep(store)
    index = PlanIndex(store)
    index.refresh()
    resolver = Resolver(store, index, 10**9)
    for name, device in ((b"own", PLAN.device), (b"kind", SIBLING)):
        asked = Question(device=device, target=PLAN.target.key, workload=None, temperature=0.0)
        resolver.answer(asked)
        resolver.remember(name, asked)
    keep(store, replace(PLAN, device=OTHER))
    index.refresh()
    assert resolver.ready(b"own") and not resolver.ready(b"kind")
    resolver.answer(Question(device=SIBLING, target=PLAN.target.key, workload=None, temperature=0.0))
    keep(store, replace(PLAN, device=FOREIGN))
    index.refresh()
    assert resolver.ready(b"own") and resolver.ready(b"kind")
    store.promote_plan(1, "somebody", "better")
    index.refresh()
    assert not resolver.ready(b"own")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_becomes_of_plans_memory_and_the_ladder_find_the_same(store: SqlStore, seed: int) -> None:
    source, index = random.Random(seed), PlanIndex(store)
    resolver = Resolver(store, index, 10**9)
    devices = [PLAN.device, OTHER, SIBLING, FOREIGN, NEAR]
    for _ in range(25):
        dtype, workload = source.choice(["float32", "bfloat16"]), source.choice(["default", "x"])
        plan = replace(PLAN, device=source.choice(devices[:4]), dtype=dtype, workload=workload)
        plan_id = keep(store, plan)
        change = source.choice([store.promote_plan, store.retire_plan, store.restore_plan])
        with suppress(StoreError):
            change(source.randint(1, plan_id), "somebody", "chance")
        index.refresh()
        for device, named in product(devices, (None, "bfloat16")):
            asked = Question(device=device, target=PLAN.target.key, workload=None, temperature=0.0, dtype=named)
            wanted = Wanted(target=PLAN.target, device=device, workload=None, temperature=0.0, dtype=named)
            assert from_memory(resolver, asked) == on_the_ladder(store, wanted)


def from_memory(resolver: Resolver, asked: Question) -> tuple[object, ...]:
    try:
        answer = json.loads(resolver.answer(asked).body)
        return answer["plan_id"], answer["rung"]
    except NoPlanError as error:
        return (str(error),)


def on_the_ladder(store: SqlStore, wanted: Wanted) -> tuple[object, ...]:
    try:
        found = find_plan(store, wanted)
        return found.plan_id, found.rung
    except NoPlanError as error:
        return (str(error),)


def test_long_queries_and_unknown_targets_take_no_memory(store: SqlStore) -> None:
    index = PlanIndex(store)
    resolver = Resolver(store, index, 10**9)
    keep(store)
    index.refresh()
    asked = Question(device=PLAN.device, target=PLAN.target.key, workload=None, temperature=0.0)
    resolver.answer(asked)
    places = len(index._rows)
    for number in range(10):
        assert not index.counting(f"unknown {number}", (ANY,))
        resolver.remember(b"x" * 501 + b"%d" % number, asked)
    assert len(index._rows) == places and not resolver._queries


@pytest.mark.parametrize("table", ["device", "model"])
def test_a_row_that_a_newer_version_wrote_hides_no_other(store: SqlStore, table: str) -> None:
    row = row_of(SIBLING) if table == "device" else row_of(replace(PLAN.target, weights_hash="0" * 64))
    row.document = row.document.replace("{", '{"added_later":1,', 1)
    with store._writing() as session:
        session.add(row)
    index = PlanIndex(store)
    index.refresh()
    assert (index.devices.get(PLAN.device.fingerprint), index.models.get(PLAN.target.key)) == (PLAN.device, PLAN.target)
    assert (store.devices(), store.models()) == ([PLAN.device, OTHER], [PLAN.target])


def test_a_device_whose_transaction_ended_late_is_seen(store: SqlStore) -> None:
    index = PlanIndex(store)
    for number, device in ((9, SIBLING), (8, FOREIGN)):  # PostgreSQL numbers rows before anybody sees them
        row = row_of(device)
        row.id = number
        with store._writing() as session:
            session.add(row)
        index.refresh()
        assert index.devices.get(device.fingerprint) == device


def test_answers_from_memory_are_counted_apart_from_those_that_were_found(store: SqlStore) -> None:
    keep(store)
    body = {"device": json.loads(to_json(PLAN.device)), "target": PLAN.target.key, "workload": PLAN.workload}
    with TestClient(create_app(store, ServiceSettings(auth="off", workers=0))) as client:
        for count in ("0.0", "1.0"):
            lines = client.get("/metrics").text.splitlines()
            assert {f"spectune_resolve_cache_{name}_total {count}" for name in ("hits", "misses")} <= {*lines}
            for _ in range(2):
                assert client.post("/v1/resolve", json=body).status_code == 200
    assert {"spectune_rate_limited_total 0.0", 'spectune_jobs{state="running"} 0.0'} <= {*lines}
