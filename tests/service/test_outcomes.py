"""What became of plans over HTTP: what would break a page is refused, and what was kept before that hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spectune.db.sql.sql_store import SqlStore
from spectune.db.wire import Document
from spectune.profiler.records.wire import to_json
from spectune.service.app import create_app
from spectune.service.settings import ServiceSettings

from ..support.fresh_store import fresh_store
from ..support.site_store import add_plan, nasty_plan, observation, stalled_validation, undated_observation, validation

PLAN = nasty_plan(2.5)


@dataclass(frozen=True)
class Served:
    """A store with one plan, and the service on it."""

    store: SqlStore
    client: TestClient

    def sent(self, what: str, text: str) -> Any:
        """Return the answer to an outcome of the plan."""
        headers = {"Content-Type": "application/json"}
        return self.client.post(f"/v1/plans/1/{what}", content=to_json(Document(document=text)), headers=headers)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    settings = ServiceSettings(auth="off", rate_per_s=0.0, workers=0)
    with fresh_store(tmp_path) as store, TestClient(create_app(store, settings)) as client:
        add_plan(store, PLAN)
        yield Served(store, client)


def test_outcomes_that_no_page_can_show_are_refused_with_the_value_seen(served: Served) -> None:
    undated = served.sent("observations", undated_observation(1, PLAN))
    stalled = served.sent("validations", stalled_validation(1, PLAN))
    assert (undated.status_code, stalled.status_code) == (422, 422)
    assert "a moment is ISO 8601, such as 2026-01-31T12:00:00+00:00, got 'yesterday'" in undated.json()["detail"]
    assert "above 0, got (" in stalled.json()["detail"]
    assert not served.store.observations(1) and not served.store.validations(1)


def test_sound_outcomes_are_kept(served: Served) -> None:
    assert served.sent("observations", to_json(observation(1, PLAN, 0))).status_code == 201
    assert served.sent("validations", to_json(validation(1, PLAN))).status_code == 201


def test_outcomes_that_an_older_version_kept_hide_no_others(served: Served) -> None:
    served.store.add_observation(1, undated_observation(1, PLAN))
    for hour in range(12):
        served.store.add_observation(1, to_json(observation(1, PLAN, hour)))
    served.store.add_validation(1, stalled_validation(1, PLAN))
    drift = served.client.get("/v1/plans/1/drift")
    assert drift.status_code == 200
    assert (drift.json()["observations"], drift.json()["unreadable"], drift.json()["is_drifting"]) == (12, 1, True)
    assert {served.client.get(path).status_code for path in ("/", "/drift", "/plans/1")} == {200}
    assert len(served.client.get("/v1/plans/1/observations").json()["items"]) == 13
