"""A store as a folder of JSON: complete, named for people, described by schemas, merged without duplicates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.db.exchange.check import faults_of
from spectune.db.exchange.folder import read_folder, safe, write_folder
from spectune.db.exchange.merge import Merged, merge
from spectune.db.exchange.published import published, schema_text
from spectune.db.exchange.records import KINDS, everything
from spectune.db.sources import overhead_source, surface_source, trace_source
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import StoreError
from spectune.planner.plans.document import plan_to_json

from ...support.empty_stores import Open, new
from ...support.plans import plan_of
from ...support.postgres_server import postgres
from ...support.store_records import DEVICE, MODEL, SETUP, SURFACE, agreement, cell, overhead, surface, trace

__all__ = ["new", "postgres"]

PLAN = plan_to_json(plan_of([(1, 128), (4, 128)]))
ON_DEVICE = replace(SURFACE, device=DEVICE.fingerprint, model=MODEL.key)
BY = {"by": "ada", "reason": "faster"}
OUTCOMES = {"observation", "validation"}


def fill(store: SqlStore, text: str = PLAN) -> int:
    store.add_device(DEVICE)
    store.add_model(MODEL)
    journal = store.open_profile("key")
    cells = (cell(1, 1.0), cell(2, 2.0))
    journal.finish_surfaces([surface(*cells, key=ON_DEVICE)])
    journal.finish(overhead=overhead(0.5), traces=[trace()], pairwise=[agreement(10)])
    store.add_measurements(ON_DEVICE, [cell(2, 2.5)])
    sources = [surface_source(surface(*cells, key=ON_DEVICE), "target"), trace_source(trace())]
    plan = store.add_plan(text, device=DEVICE.fingerprint, device_kind="kind", **SETUP, sources=sources)
    store.promote_plan(plan, **BY)
    store.add_observation(plan, '{"seen": 1}')
    store.add_validation(plan, '{"found": 1}')
    return plan


def through_folder(store: SqlStore, other: SqlStore, folder: Path) -> Merged:
    list(write_folder(everything(store), folder))
    return merge(other, lambda: read_folder(folder))


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / f"{kind}s").iterdir())


def test_a_store_comes_back_whole_from_a_folder(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    plan = fill(store)
    merged = through_folder(store, other, tmp_path / "out")
    assert merged.added == {"measurement": 3} | dict.fromkeys((set(KINDS) | OUTCOMES) - {"surface"}, 1)
    assert list(everything(other)) == list(everything(store))
    assert (other.surfaces(), other.plan(1)) == (store.surfaces(), store.plan(plan))
    assert list(faults_of(other)) == []


def test_a_second_import_adds_nothing(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    fill(store)
    first = through_folder(store, other, tmp_path / "out")
    again = through_folder(store, other, tmp_path / "out")
    assert (again.added, again.known, again.left_out) == ({}, first.added, ())
    assert list(everything(other)) == list(everything(store))


def test_two_stores_that_share_a_past_become_one(new: Open) -> None:
    store, other = new(), new()
    fill(store)
    merge(other, lambda: everything(store))
    store.add_measurements(ON_DEVICE, [cell(3, 3.0)])
    other.add_trace(trace("other"))
    merge(store, lambda: everything(other))
    assert merge(other, lambda: everything(store)).added == {"measurement": 1}
    assert len(store.trace_rows()) == len(other.trace_rows()) == 2
    assert store.surfaces() == other.surfaces()


def test_what_became_of_a_known_plan_comes_in_once(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    plan = fill(store)
    through_folder(store, other, tmp_path / "before")
    for document in ('{"seen": 2}', '{"seen": 2}', '{"seen": 1}'):  # equal ones are as many here as there
        store.add_observation(plan, document)
    store.add_validation(plan, '{"found": 2}')
    other.add_observation(1, '{"seen": "only here"}')
    assert through_folder(store, other, tmp_path / "after").added == {"observation": 3, "validation": 1}
    assert through_folder(store, other, tmp_path / "after").added == {}
    assert other.observations(1) == [
        '{"seen": 1}',
        '{"seen": "only here"}',
        '{"seen": 2}',
        '{"seen": 2}',
        '{"seen": 1}',
    ]
    assert other.validations(1) == store.validations(plan)


def test_older_cells_never_hide_newer_ones(new: Open) -> None:
    older, newer = new(), new()
    older.add_measurements(SURFACE, [cell(1, 1.0)])
    older.add_overhead(overhead(1.0))
    newer.add_measurements(SURFACE, [cell(1, 2.0)])
    newer.add_overhead(overhead(2.0))
    merged = merge(newer, lambda: everything(older))
    assert (merged.added, len(merged.left_out)) == ({}, 2)
    assert newer.surfaces()[0].latency(1, 128, 1).ms == 2.0
    assert newer.overhead("device", "target", "float32") == overhead(2.0)


def test_older_host_times_come_in_where_none_of_their_regime_are_newer(new: Open, tmp_path: Path) -> None:
    older, newer = new(), new()
    for regime in ("eager", "cuda-graph"):
        older.add_overhead(overhead(1.0, regime=regime))
    newer.add_overhead(overhead(2.0, regime="cuda-graph"))
    assert through_folder(older, newer, tmp_path).added == {"overhead": 1}
    named = [f"device_name=device,target=target,regime={each},dtype=float32.json" for each in ("cuda-graph", "eager")]
    assert names(tmp_path, "overhead") == named
    found = [newer.overhead("device", "target", "float32", regime) for regime in ("eager", "cuda-graph")]
    assert found == [overhead(1.0, regime="eager"), overhead(2.0, regime="cuda-graph")]


def test_an_older_plan_comes_in_retired_and_promotions_stay_out(new: Open) -> None:
    older, newer = new(), new()
    for store, note in ((older, '"old"'), (newer, '"new"')):
        store.add_plan(note, device="device", device_kind="kind", **SETUP)
    older.promote_plan(1, **BY)
    merge(newer, lambda: everything(older))
    assert newer.plan(newer.find_plan(device="device", **SETUP).id) == '"new"'
    assert [row.state for row in newer.plans()] == ["kept", "retired"]


def test_a_newer_plan_counts_unless_another_is_promoted_here(new: Open) -> None:
    here, there = new(), new()
    here.add_plan('"old"', device="device", device_kind="kind", **SETUP)
    here.promote_plan(1, **BY)
    there.add_plan('"new"', device="device", device_kind="kind", **SETUP)
    merge(here, lambda: everything(there))
    assert here.plan(here.find_plan(device="device", **SETUP).id) == '"old"'
    here.retire_plan(1, **BY)
    assert here.plan(here.find_plan(device="device", **SETUP).id) == '"new"'


def test_a_store_is_merged_whole_or_not_at_all(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    fill(store)
    list(write_folder(everything(store), tmp_path / "out"))
    (file,) = (tmp_path / "out" / "plans").iterdir()
    file.write_text(file.read_text().replace('"batch":4', '"batch":5'))
    with pytest.raises(StoreError, match=rf"{file.name} is no SharedPlan: .* no longer has its hash"):
        merge(other, lambda: read_folder(tmp_path / "out"))
    assert list(everything(other)) == []


@pytest.mark.parametrize("text", ["{}", PLAN, '{"a": 1.0}\n', "no JSON", '"ü\\u0000"'])
def test_a_plan_s_text_survives_byte_for_byte(new: Open, tmp_path: Path, text: str) -> None:
    store, other = new(), new()
    fill(store, text)
    through_folder(store, other, tmp_path / "out")
    assert other.plan(1) == text


def test_files_are_named_after_what_they_are_about(tmp_path: Path) -> None:
    with SqlStore(resolve_url("sqlite://")) as store:
        fill(store)
        list(write_folder(everything(store), tmp_path))
    where = "device_name=Test_CPU,target=tiny"
    assert names(tmp_path, "surface") == [f"{where},role=verify,regime=eager,dtype=float32.json"]
    assert names(tmp_path, "plan") == [
        "device_name=Test_CPU,target=target,workload=chat,temperature=0.7,dtype=float32.json"
    ]


def test_names_that_differ_in_capitals_alone_are_told_apart(tmp_path: Path) -> None:
    with SqlStore(resolve_url("sqlite://")) as store:
        for drafter in ("a", "A", "a!"):
            store.add_trace(trace(drafter))
        written = [each.path for each in write_folder(everything(store), tmp_path)]
        assert len({str(path).lower() for path in written}) == 3
        assert list(read_folder(tmp_path)) == list(everything(store))


def test_exporting_again_leaves_the_same_files(tmp_path: Path) -> None:
    with SqlStore(resolve_url("sqlite://")) as store:
        fill(store)
        first = {each.path: each.path.read_bytes() for each in write_folder(everything(store), tmp_path)}
        list(write_folder(everything(store), tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == first


@pytest.mark.parametrize(
    ("value", "name"),
    [("NVIDIA H200", "NVIDIA_H200"), ("a/../b\\c:d", "a_.._b_c_d"), ("Fünf", "Funf"), ("x" * 99, "x" * 40)],
)
def test_a_value_in_a_name_is_safe_everywhere(value: str, name: str) -> None:
    assert safe(value) == name


def test_a_value_without_a_safe_character_is_named_by_its_hash() -> None:
    assert {len(safe(value)) for value in ("../..", "日本", "///")} == {8}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "is not JSON"),
        ("[]", "says it is a None"),
        ('{"kind":"pickle"}', "says it is a 'pickle'"),
        ('{"kind":"device","format":2}', "has format 2, newer than this spectune's 1"),
        ('{"kind":"device"}', "is no SharedDevice"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, content: str, fault: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(StoreError, match=rf"x\.json {fault}"):
        list(read_folder(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_schemas_are_current(kind: str) -> None:
    assert published(kind) == schema_text(kind), "write them anew with: python -m spectune.db.exchange.published"


def test_every_exported_file_fits_its_published_schema(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with SqlStore(resolve_url("sqlite://")) as store:
        fill(store)
        seen = set()
        for written in write_folder(everything(store), tmp_path):
            jsonschema.validate(json.loads(written.path.read_text()), schema(written.kind))
            seen.add(written.kind)
    assert seen == set(KINDS)


def test_a_schema_refuses_what_the_record_refuses() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"kind": "device", "created": "now"}, schema("device"))


def schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(published(kind))
    return found


def test_what_a_plan_names_but_the_folder_lacks_is_not_held(new: Open) -> None:
    store, other = new(), new()
    sources = [overhead_source(overhead(1.0))]
    store.add_plan("{}", device="device", device_kind="kind", **SETUP, sources=sources)
    merge(other, lambda: everything(store))
    assert [source.is_held for source in other.plan_sources(1)] == [False]
