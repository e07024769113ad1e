"""The plan job: what the store holds is what is planned with, and what is missing is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.errors import StoreError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plan import plan_from_json
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.surface import LatencySurface
from spectune.tuning.plan import PlanRequest, inputs_from_store, make_plan

from .synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, model, record, surface, texts

REQUEST = PlanRequest(target=TARGET, device=DEVICE, dtype="float32", workload="made up")


@cache
def recorded(name: str = "small", language: int = 3) -> AcceptanceTrace:
    spoken = Language(language)
    return record(SkilledDrafter(spoken, 0.8), texts(spoken, 6, lambda text: 16), every_node(2, 3), name=name)


@cache
def measured() -> PlanInputs:
    return inputs(recorded())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def keep_surface(store: Store, kept: LatencySurface) -> None:
    key = SurfaceKey(device=kept.device, model=kept.model, role=kept.role, regime=kept.regime, dtype=kept.dtype)
    store.add_measurements(key, kept.measurements)


def keep(store: Store, *, but: str = "") -> None:
    """Put everything a plan needs into the store, one thing excepted."""
    found, drafter = measured(), measured().drafters[0]
    store.add_device(found.device)
    parts = {
        "target": lambda: store.add_model(found.target),
        "drafter": lambda: store.add_model(drafter.model),
        "verify surface": lambda: keep_surface(store, found.verify),
        "draft surface": lambda: keep_surface(store, drafter.surface),
        "host time": lambda: store.add_overhead(found.overhead),
        "trace": lambda: store.add_trace(drafter.trace),
    }
    for name, put in parts.items():
        if name != but:
            put()


def test_the_store_gives_back_what_was_measured(store: Store) -> None:
    keep(store)
    assert inputs_from_store(REQUEST, store) == measured()


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("drafter", "no model small"),
        ("verify surface", "no verify surface of large in float32"),
        ("draft surface", "no draft surface of small in float32"),
        ("host time", "no host time per round"),
        ("trace", "no trace of the workload 'made up'"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_makes_it(store: Store, missing: str, complaint: str) -> None:
    keep(store, but=missing)
    with pytest.raises(StoreError, match=complaint) as refusal:
        inputs_from_store(REQUEST, store)
    assert "run: spectune profile --target nowhere" in str(refusal.value)


@pytest.mark.parametrize(
    "other", [{"workload": "chat"}, {"temperature": 0.8}, {"dtype": "bfloat16"}, {"device": replace(DEVICE, cores=9)}]
)
def test_measurements_of_another_setup_are_not_taken(store: Store, other: dict[str, object]) -> None:
    keep(store)
    with pytest.raises(StoreError, match="the store holds no"):
        inputs_from_store(replace(REQUEST, **other), store)  # type: ignore[arg-type]


def test_a_drafter_recorded_along_other_prompts_is_left_out(store: Store) -> None:
    store.add_model(model("elder"))
    keep_surface(store, surface("elder", "draft", lambda batch, context, tokens: 1.0))
    store.add_trace(recorded("elder", language=4))
    keep(store)
    assert [drafter.name for drafter in inputs_from_store(REQUEST, store).drafters] == ["small"]


def test_a_plan_is_kept_as_it_was_made(store: Store) -> None:
    keep(store)
    plan = make_plan(replace(REQUEST, batches=(1,), contexts=(30, 60)), store)
    stored = store.newest_plan(device=DEVICE.fingerprint, target=TARGET.key, workload="made up", temperature=0.0)
    assert plan_from_json(stored) == plan
    assert [(cell.batch, cell.context) for cell in plan.cells] == [(1, 30), (1, 60)]


def test_without_a_wish_every_measured_batch_and_context_is_planned(store: Store) -> None:
    keep(store)
    plan = make_plan(REQUEST, store)
    assert {(cell.batch, cell.context) for cell in plan.cells} == {(1, 2), (3, 2), (1, 200), (3, 200)}
