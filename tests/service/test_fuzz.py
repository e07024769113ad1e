"""The service under hostile input: every operation of its document, ten thousand plan documents, every wrong token.

The default is a sample that takes seconds; all of it: SPECTUNE_FUZZ=full pytest -m fuzz -n0
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis import checks as contract
from schemathesis.openapi import from_dict
from starlette.routing import BaseRoute

from spectune.errors import SpectuneError
from spectune.planner.plans.document import plan_from_json, plan_to_json

from ..support.filled_service import PLAN, FilledService, filled_service, is_problem, new_plan
from ..support.hostile import mutated

IS_FULL = os.environ.get("SPECTUNE_FUZZ") == "full"
DOCUMENTS = 10_000 if IS_FULL else 300
INVENTED = 2_000 if IS_FULL else 60  # by hypothesis
CASES = 30 if IS_FULL else 2  # of every operation and kind of data
CHECKS = [
    contract.not_a_server_error,
    contract.status_code_conformance,
    contract.content_type_conformance,
    contract.response_headers_conformance,
    contract.response_schema_conformance,
    contract.negative_data_rejection,
    contract.missing_required_header,
    contract.unsupported_method,
]
METHODS = ("get", "head", "post", "put", "patch", "delete")
OPEN = {"/healthz", "/readyz"}
QUESTIONS = {"/v1/resolve"}  # asked by POST, and yet only read
ADMIN = re.compile(r"/v1/plans/(\{[^/]+\}/(promote|retire|restore)|rollback)|.*(token|prune).*")
WEAKER = {"write": "read", "admin": "write"}

pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledService]:
    with filled_service(tmp_path_factory.mktemp("fuzz")) as filled:
        yield filled


def examples(count: int) -> settings:
    """Return how to draw so many: the same ones each time, unless all is tried."""
    health = list(HealthCheck)
    return settings(
        max_examples=count, deadline=None, database=None, derandomize=not IS_FULL, suppress_health_check=health
    )


def operations(service: FilledService) -> list[tuple[str, str]]:
    """Return (method, path) of everything the document names, and HEAD of all that can be read."""
    named = [(method, path) for path, item in service.openapi["paths"].items() for method in item if method in METHODS]
    return named + [("head", path) for method, path in named if method == "get"]


def address(service: FilledService, path: str) -> str:
    """Return a path with something in every place: nothing that exists, so that nothing is changed."""
    return re.sub(r"\{[^}]*\}", "999999", path)


def needed(method: str, path: str) -> str:
    """Return the weakest token that is enough; what nobody thought of here must need one that writes."""
    if method in ("get", "head") or path in QUESTIONS:
        return "read"
    return "admin" if ADMIN.fullmatch(path) else "write"


def test_the_document_names_every_route(service: FilledService) -> None:
    named = set(service.openapi["paths"])
    routes = {path for path in map(path_of, service.client.app.routes) if path.startswith("/v1")}  # type: ignore[attr-defined]
    assert len(named) > 40
    assert routes <= named


def path_of(route: BaseRoute) -> str:
    return re.sub(r":[a-z]+\}", "}", getattr(route, "path", ""))


@pytest.mark.parametrize("token", [None, "wrong", "empty", "garbage", "expired", "revoked"])
def test_no_operation_lets_in_who_has_no_valid_token(service: FilledService, token: str | None) -> None:
    texts = {"wrong": "Bearer spt_" + "A" * 43, "empty": "Bearer ", "garbage": "\xff\x00 Basic Bearer"}
    if token in ("expired", "revoked"):
        texts[token] = service.headers(token)["Authorization"]
    headers = {"Authorization": (texts[token] if token else "").encode("latin-1")}
    let_in = []
    for method, path in operations(service):
        answer = service.client.request(method, address(service, path), headers=headers)  # type: ignore[arg-type]  # bytes are sent as they are
        is_refused = answer.status_code == 401 and (method == "head" or is_problem(answer))
        if path not in OPEN and not (is_refused and "www-authenticate" in answer.headers):
            let_in.append((method, path, answer.status_code))
    assert not let_in


def test_no_operation_lets_in_who_has_too_weak_a_token(service: FilledService) -> None:
    let_in = []
    for method, path in operations(service):
        weaker = WEAKER.get(needed(method, path))
        if weaker is None:
            continue
        answer = service.client.request(method, address(service, path), headers=service.headers(weaker))
        if answer.status_code != 403 or not is_problem(answer):
            let_in.append((method, path, answer.status_code))
    assert not let_in


def test_every_operation_lets_in_whose_token_is_just_enough(service: FilledService) -> None:
    kept_out = []
    for method, path in operations(service):
        headers = service.headers(needed(method, path))
        if path.endswith("/events") and "jobs" in path:
            continue  # may stream for ever
        answer = service.client.request(method, address(service, path), headers=headers)
        if answer.status_code in (401, 403) or answer.status_code >= 500:
            kept_out.append((method, path, answer.status_code))
    assert not kept_out


def test_pages_let_in_nobody_without_a_token(service: FilledService) -> None:
    routes = [route for route in service.client.app.routes if not path_of(route).startswith("/v1")]  # type: ignore[attr-defined]
    places = [address(service, path_of(route)) for route in routes if path_of(route) not in OPEN]
    assert places
    for place in places:
        assert service.client.get(place, headers={"Authorization": ""}).status_code == 401, place


def fate(service: FilledService, document: str) -> tuple[str, str]:
    """Send a plan's document; return what became of it and what is wrong with that, "" where nothing is."""
    try:
        answer = service.client.post("/v1/plans", json=new_plan(document))
    except UnicodeEncodeError:  # half a surrogate pair is no text: no client can send it
        return "unsent", ""
    if answer.status_code in (413, 422):
        return "refused", "" if is_problem(answer) else f"refused without a reason: {answer.text[:200]}"
    if answer.status_code != 201:
        return "other", f"answered {answer.status_code}: {answer.text[:300]}"
    back = service.client.get(f"/v1/plans/{answer.json()['id']}")
    if back.content != document.encode():
        return "accepted", "came back otherwise"
    try:
        json.loads(document, parse_constant=refuse_constant)
        plan_from_json(document)
    except (ValueError, SpectuneError) as error:
        return "accepted", f"is no plan: {error}"
    return "accepted", ""


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def test_mutated_plans_are_kept_byte_for_byte_or_refused_with_a_reason(service: FilledService) -> None:
    draw, good = random.Random(0), plan_to_json(PLAN)
    fates, faults = [], []
    for _ in range(DOCUMENTS):
        document = mutated(good, draw)
        kind, fault = fate(service, document)
        fates.append(kind)
        faults += [(fault, document[:300])] if fault else []
    assert not faults, f"{len(faults)} faults, e.g. {faults[:5]}"
    assert {"accepted", "refused"} <= set(fates)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_invented_plans_are_kept_byte_for_byte_or_refused_with_a_reason(service: FilledService) -> None:
    good = json.loads(plan_to_json(PLAN))

    @examples(INVENTED)
    @given(changes=st.dictionaries(st.sampled_from([*good, "extra"]), JSON_VALUES, max_size=2), rest=JSON_VALUES)
    def send(changes: dict[str, Any], rest: Any) -> None:
        for document in (json.dumps({**good, **changes}), json.dumps(rest)):
            _, fault = fate(service, document)
            assert not fault, document

    send()


def test_plans_filed_under_hostile_words_are_refused_or_found_again(service: FilledService) -> None:
    body = new_plan(plan_to_json(PLAN))

    @examples(INVENTED)
    @given(changes=st.dictionaries(st.sampled_from(sorted(body)), JSON_VALUES, min_size=1, max_size=2))
    def send(changes: dict[str, Any]) -> None:
        answer = service.client.post(
            "/v1/plans", content=json.dumps({**body, **changes}), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (201, 409, 422), answer.text
        assert answer.status_code == 201 or is_problem(answer)

    send()


def test_every_operation_keeps_its_contract(service: FilledService) -> None:
    schema = from_dict(without_security(service.openapi))
    faults: list[str] = []
    for found, mode in itertools.product(schema.get_all_operations(), GenerationMode):
        operation = found.ok()
        if not (operation.path.endswith("/events") and "jobs" in operation.path):  # may stream for ever
            faults += faults_of(service, operation, mode)
    assert not faults, "\n\n".join(faults)


def without_security(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as for who is let in: tokens have tests of their own."""
    kept: dict[str, Any] = json.loads(json.dumps(document))
    for operation in itertools.chain.from_iterable(item.values() for item in kept["paths"].values()):
        operation.pop("security", None)
    return kept


def faults_of(service: FilledService, operation: Any, mode: GenerationMode) -> list[str]:
    """Return how one operation breaks its contract, smallest example only."""

    @examples(CASES)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        sent = case.as_transport_kwargs(base_url="http://testserver", headers=service.headers("admin"))
        case.validate_response(service.client.request(**sent), checks=CHECKS)

    try:
        send()
    except Unsatisfiable:  # nothing can be wrong with a request that takes nothing
        return []
    except BaseException as error:  # hypothesis and schemathesis raise groups of either kind
        if isinstance(error, KeyboardInterrupt):
            raise
        return [f"{operation.label} ({mode.value}): {error}"]
    return []
