"""Which stored plan a device decodes with: its own, else the nearest of its kind, with what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.errors import PlanError, RequestError
from spectune.planner.cost import cells_of
from spectune.planner.plan import Plan, plan_to_json
from spectune.planner.search import solve
from spectune.profiler.records.device import Device
from spectune.runtime.choice import Choice, choose_plan

from .synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, model, record, texts

HERE = replace(DEVICE, libraries=(("torch", "2.13"), ("transformers", "5.1")))


@cache
def solved() -> Plan:
    """Return a made-up plan."""
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.95), texts(language, 4, lambda text: 8), every_node(1, 2))
    return solve(inputs(trace), cells_of([1], [10]), created="2026-01-01T00:00:00Z", spectune="0.1")


def plan_of(device: Device, created: str = "2026-01-01T00:00:00Z") -> Plan:
    plan = solved()
    return replace(plan, device=device, provenance=replace(plan.provenance, created=created))


def keep(store: Store, plan: Plan, **key: object) -> None:
    """Store a plan under its own keys, or under others."""
    keys: dict[str, object] = {"device": plan.device.fingerprint, "device_kind": plan.device.kind_key}
    keys |= {"target": plan.target.key, "workload": plan.workload, "temperature": plan.temperature} | key
    store.add_plan(plan_to_json(plan), **keys)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def chosen(store: Store | Path, plan: str = "auto", workload: str | None = None) -> Choice:
    """Return what this device decodes with."""
    place = str(store) if isinstance(store, Path) else store.url.removeprefix("sqlite:///")
    setup = {"workload": workload or solved().workload, "temperature": solved().temperature}
    return choose_plan(plan, target=TARGET, device=HERE, store=place, **setup)  # type: ignore[arg-type]


def test_the_newest_plan_of_exactly_this_device_comes_first(store: Store) -> None:
    keep(store, plan_of(HERE, "2026-01-01T00:00:00Z"))
    keep(store, plan_of(HERE, "2026-02-02T00:00:00Z"))
    keep(store, plan_of(replace(HERE, threads=1), "2026-03-03T00:00:00Z"))
    choice = chosen(store)
    assert (choice.source, choice.reason) == ("this device", "plan made on this device")
    assert choice.plan is not None and choice.plan.provenance.created.startswith("2026-02")
    assert choice.match is not None and choice.match.grade == "same"


def test_without_its_own_the_nearest_device_of_the_kind_lends_its_plan(store: Store) -> None:
    near = replace(HERE, libraries=(("torch", "2.12"), ("transformers", "5.1")))
    keep(store, plan_of(near))
    keep(store, plan_of(replace(near, threads=1)))
    choice = chosen(store)
    assert choice.plan is not None and choice.plan.device == near
    assert choice.source == "same kind of device"


def test_what_differs_of_a_borrowed_plan_is_named(store: Store) -> None:
    keep(store, plan_of(replace(HERE, threads=1, libraries=(("torch", "2.12"), ("transformers", "5.1")))))
    reason = chosen(store).reason
    assert "threads 1 instead of 2, torch 2.12 instead of 2.13" in reason
    assert "its prediction may be off" in reason


def test_of_a_borrowed_device_the_newest_plan_counts(store: Store) -> None:
    other = replace(HERE, threads=1)
    keep(store, plan_of(other, "2026-01-01T00:00:00Z"))
    keep(store, plan_of(other, "2026-02-02T00:00:00Z"))
    plan = chosen(store).plan
    assert plan is not None and plan.provenance.created.startswith("2026-02")


def test_a_nearer_device_with_plans_for_other_requests_only_is_passed_over(store: Store) -> None:
    near, far = replace(HERE, libraries=()), replace(HERE, libraries=(), threads=1)
    keep(store, plan_of(near), workload="other")
    keep(store, plan_of(far))
    plan = chosen(store).plan
    assert plan is not None and plan.device == far


def test_another_kind_of_device_means_plain_decoding(store: Store) -> None:
    keep(store, plan_of(replace(HERE, cores=64)))
    choice = chosen(store)
    assert (choice.plan, choice.source, choice.match) == (None, "none", None)
    assert "no plan for" in choice.reason


def test_a_plan_filed_under_the_wrong_kind_means_plain_decoding(store: Store) -> None:
    keep(store, plan_of(replace(HERE, cores=64)), device_kind=HERE.kind_key)
    choice = chosen(store)
    assert choice.plan is None
    assert "cores 64 instead of 2" in choice.reason


def test_a_damaged_plan_means_plain_decoding(store: Store) -> None:
    store.add_plan(
        "{}", device="d", device_kind=HERE.kind_key, target=TARGET.key, workload=solved().workload, temperature=0.0
    )
    assert chosen(store).reason.startswith("plain decoding, the stored plan is of no use")


def test_no_store_means_plain_decoding(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no database")
    assert chosen(tmp_path / "store.db").plan is None


def test_plain_decoding_can_be_asked_for(store: Store) -> None:
    keep(store, plan_of(HERE))
    assert chosen(store, "none").reason == "plain decoding was asked for"


@pytest.mark.parametrize(
    ("device", "caution"),
    [(HERE, ""), (replace(HERE, threads=1), " with threads 1 instead of 2; its prediction may be off")],
)
def test_a_plan_file_says_what_differs(store: Store, tmp_path: Path, device: Device, caution: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_to_json(plan_of(device)))
    choice = chosen(store, str(file))
    assert (choice.source, choice.reason) == ("file", f"plan from {file}{caution}")


def test_a_plan_file_for_another_device_is_refused_with_what_differs(store: Store, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_to_json(plan_of(replace(HERE, cores=64))))
    with pytest.raises(PlanError, match="cores 64 instead of 2"):
        chosen(store, str(tmp_path / "plan.json"))


def test_a_plan_file_for_another_model_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_to_json(replace(plan_of(HERE), target=model("other"))))
    with pytest.raises(PlanError, match="for the model other, not for large"):
        chosen(store, str(tmp_path / "plan.json"))


def test_a_plan_file_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read the plan"):
        chosen(store, str(tmp_path / "absent.json"))
