"""A service on a small store that holds one of everything, with tokens of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from spectune.db.jobs.access import Scope, Tokens
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.observation import CellObservation, Observation
from spectune.planner.plans.plan import Plan
from spectune.planner.plans.validation import Validation, ValidationRow
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import PairwiseAcceptance
from spectune.profiler.records.wire import to_json
from spectune.service.app import create_app
from spectune.service.settings import ServiceSettings

from .plans import plan_of
from .synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, model, overhead, record, surface, texts

PLAN = plan_of([(1, 100), (4, 100)])
SCOPES: tuple[Scope, ...] = ("read", "write", "admin")


@dataclass(frozen=True, kw_only=True)
class FilledService:
    """The service as a client meets it."""

    client: TestClient  # has a token that may do everything
    store: SqlStore
    tokens: dict[str, str]  # "read", "write", "admin", and "expired" and "revoked" of scope admin
    openapi: dict[str, Any]

    def headers(self, token: str) -> dict[str, str]:
        """Return what a request with one of the tokens brings."""
        return {"Authorization": f"Bearer {self.tokens[token]}"}


@contextmanager
def filled_service(folder: Path) -> Iterator[FilledService]:
    """Fill a store and serve it inside this process."""
    with SqlStore(resolve_url(str(folder / "store.db"))) as store:
        fill(store)
        tokens = made_tokens(store)
        app = create_app(store, ServiceSettings(rate_per_s=0.0, workers=0, upload_bytes=2**20, body_bytes=2**20))
        headers = {"Authorization": f"Bearer {tokens['admin']}"}
        with TestClient(app, raise_server_exceptions=False, follow_redirects=False, headers=headers) as client:
            openapi = client.get("/openapi.json").json()
            yield FilledService(client=client, store=store, tokens=tokens, openapi=openapi)


def fill(store: SqlStore) -> None:
    """Write one of everything."""
    store.add_device(DEVICE)
    for identity in (TARGET, model("small")):
        store.add_model(identity)
    cells = surface("large", "verify", lambda batch, context, tokens: 8.0 + 0.1 * tokens, tokens=(1, 2, 4))
    names = ("device", "model", "role", "regime", "dtype")
    store.add_measurements(SurfaceKey(**{name: getattr(cells, name) for name in names}), cells.measurements)
    store.add_overhead(overhead(0.1))
    language = Language(3)
    store.add_trace(record(SkilledDrafter(language, 0.9), texts(language, 2, lambda text: 5), every_node(1, 2)))
    alike = ((1.0, 0.5), (0.5, 1.0))
    store.add_pairwise(PairwiseAcceptance(models=("large", "small"), greedy=alike, overlap=alike, positions=4))
    plan_id = add_plan(store, PLAN)
    store.add_observation(plan_id, to_json(observation(plan_id)))
    store.add_validation(plan_id, to_json(validation(plan_id)))
    store.promote_plan(plan_id, "somebody", "it is good")


def add_plan(store: SqlStore, plan: Plan) -> int:
    """Store a plan under its own keys."""
    return store.add_plan(plan_to_json(plan), **keys_of(plan))


def keys_of(plan: Plan) -> dict[str, Any]:
    """Return what a plan is filed under."""
    return {
        "device": plan.device.fingerprint,
        "device_kind": plan.device.kind_key,
        "target": plan.target.key,
        "workload": plan.workload,
        "temperature": plan.temperature,
    }


def new_plan(document: str, plan: Plan = PLAN) -> dict[str, Any]:
    """Return the body that asks to keep a document under the keys of a plan."""
    return {"document": document, **keys_of(plan), "sources": []}


def observation(plan_id: int) -> Observation:
    """Return what a decoder might have seen."""
    cell = CellObservation(
        batch=1, context=100, is_planned=True, policy="plain", drafter=None, rounds=2, tokens=2,
        kept=(0, 2), draft_ms=0.0, verify_ms=18.0, round_ms=20.0,
    )  # fmt: skip
    moment = "2026-01-01T00:00:00Z"
    return Observation(
        plan_id=plan_id, device=DEVICE.fingerprint, dtype="float32", source="a test", spectune="0.1",
        began=moment, ended=moment, cells=(cell,),
    )  # fmt: skip


def validation(plan_id: int) -> Validation:
    """Return what a plan might have delivered."""
    row = ValidationRow(
        batch=1, context=100, policy="plain", drafter=None, predicted_tokens_per_s=100.0, interval=(90.0, 110.0),
        measured_tokens_per_s=98.0, plain_tokens_per_s=98.0,
    )  # fmt: skip
    return Validation(plan_id=plan_id, rows=(row,))


def made_tokens(store: SqlStore) -> dict[str, str]:
    """Return a token of every scope, one whose time is over, and one that was taken back."""
    tokens = Tokens(store)
    made: dict[str, str] = {scope: tokens.create(scope, scope) for scope in SCOPES}
    soon = datetime.now(UTC) + timedelta(seconds=0.05)
    made["expired"] = tokens.create("expired", "admin", soon)
    made["revoked"] = tokens.create("revoked", "admin")
    tokens.revoke("revoked")
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()) + 0.01)
    return made


def is_problem(answer: Any) -> bool:  # Any: an httpx.Response
    """Say whether an answer is a refusal that explains itself and tells no secret."""
    if answer.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
        return False
    told = json.loads(answer.content)
    has_parts = {"type", "title", "status", "detail", "instance", "request_id"} <= set(told)
    return (
        has_parts and told["status"] == answer.status_code and bool(told["detail"]) and "Traceback" not in answer.text
    )
