"""A prune takes out what nothing needs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.db.exchange.check import faults_of
from spectune.db.exchange.prune import Pruned, prune
from spectune.db.sources import surface_source, trace_source
from spectune.db.sql.documents import row_of
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.profiler.records.measurement import Measurement

from ...support.journal_records import VISIT
from ...support.postgres_server import postgres
from ...support.store_records import SETUP, SURFACE, agreement, cell, overhead, surface, trace

__all__ = ["postgres"]

OLD, NEW = (cell(1, 1.0), cell(2, 2.0)), (cell(1, 1.5), cell(2, 2.5))
BY = {"by": "ada", "reason": "it is slow"}


@pytest.fixture(params=["file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    is_file = request.param == "file"
    url = str(tmp_path / "store.db") if is_file else request.getfixturevalue("postgres").new_database()
    with SqlStore(resolve_url(url)) as opened:
        yield opened


def profile(store: SqlStore, *cells: Measurement) -> None:
    journal = store.open_profile("key")
    journal.finish_surfaces([surface(*cells)])
    journal.finish()


def add_plan(store: SqlStore, *cells: Measurement, note: str = "") -> int:
    sources = [surface_source(surface(*cells), "target"), trace_source(trace(seed=cells == NEW))]
    return store.add_plan(f'"{note}"', device="device", device_kind="kind", **SETUP, sources=sources)


def taken(store: SqlStore) -> dict[str, int]:
    return {each.kind: each.rows for each in prune(store)}


def test_superseded_cells_and_records_are_taken_out(store: SqlStore) -> None:
    for cells, ms in ((OLD, 1.0), (NEW, 2.0)):
        profile(store, *cells)
        store.add_overhead(overhead(ms))
        store.add_trace(trace(seed=int(ms)))
        store.add_pairwise(agreement(int(ms)))
    assert taken(store) == {"measurement": 2, "overhead": 1, "trace": 1, "pairwise": 1}
    assert store.surfaces() == [surface(*NEW)]
    assert store.overhead("device", "target", "float32") == overhead(2.0)
    assert taken(store) == {}


@pytest.mark.parametrize("damaged", ["older", "newer"])
def test_a_trace_that_cannot_be_read_neither_goes_nor_supersedes(store: SqlStore, damaged: str) -> None:
    rows = [row_of(trace(seed=seed)) for seed in (0, 1, 2)]
    rows[0 if damaged == "older" else 2].document = "{}"
    for row in rows:
        with store._writing() as session:
            session.add(row)
    assert taken(store) == {"trace": 1}
    assert [row.id for row in store.trace_rows()] == ([1, 3] if damaged == "older" else [2, 3])


def test_host_times_are_superseded_by_those_of_their_regime_alone(store: SqlStore) -> None:
    for ms, regime in ((1.0, "eager"), (2.0, "eager"), (3.0, "cuda-graph")):
        store.add_overhead(overhead(ms, regime=regime))
    assert taken(store) == {"overhead": 1}
    assert store.overhead("device", "target", "float32", "eager") == overhead(2.0, regime="eager")


@pytest.mark.parametrize("other", [{"target": "other"}, {"workload": "code"}, {"temperature": 0.0}])
def test_agreement_is_superseded_by_that_along_the_same_texts_alone(store: SqlStore, other: dict[str, Any]) -> None:
    for positions, along in ((1, SETUP), (2, SETUP), (3, {**SETUP, **other})):
        store.add_pairwise(agreement(positions, **along))
    assert taken(store) == {"pairwise": 1}
    assert store.pairwise(["large", "small"], **SETUP) == agreement(2, **SETUP)


def test_host_times_that_no_newer_profile_measured_are_kept(store: SqlStore) -> None:
    times = overhead(1.0)
    wider = replace(times, samples=tuple(replace(sample, batch=64) for sample in times.samples))
    for each in (overhead(3.0), times, wider):
        store.add_overhead(each)
    joined = store.overhead("device", "target", "float32")
    assert joined is not None and {sample.batch for sample in joined.samples} >= {64, times.samples[0].batch}
    assert taken(store) == {"overhead": 1}
    assert store.overhead("device", "target", "float32") == joined


def test_a_dry_run_says_the_same_and_takes_nothing(store: SqlStore) -> None:
    for cells in (OLD, NEW):
        profile(store, *cells)
    told = prune(store, dry_run=True)
    assert told == [Pruned(kind="measurement", of="device model verify eager float32", rows=2)]
    assert prune(store) == told


def test_what_a_plan_that_counts_was_computed_from_stays(store: SqlStore) -> None:
    for cells in (OLD, NEW):
        profile(store, *cells)
        store.add_trace(trace(seed=cells == NEW))
    plan = add_plan(store, *OLD)
    assert taken(store) == {}
    assert [source.is_held for source in store.plan_sources(plan)] == [True, True]


@pytest.mark.parametrize("action", ["promote_plan", "retire_plan"])
def test_what_a_superseded_plan_was_computed_from_stays_while_it_is_promoted(store: SqlStore, action: str) -> None:
    profile(store, *OLD)
    store.add_trace(trace(seed=0))
    first = add_plan(store, *OLD, note="first")
    profile(store, *NEW)
    store.add_trace(trace(seed=1))
    add_plan(store, *NEW, note="second")
    getattr(store, action)(first, **BY)
    assert taken(store) == ({} if action == "promote_plan" else {"measurement": 2, "trace": 1})
    assert [source.is_held for source in store.plan_sources(first)] == [action == "promote_plan"] * 2


def test_a_pruned_store_is_sound_and_keeps_its_plans(store: SqlStore) -> None:
    profile(store, *OLD)
    store.add_trace(trace(seed=0))
    plans = [add_plan(store, *OLD, note="first"), add_plan(store, OLD[0], note="second")]
    profile(store, *NEW)
    store.retire_plan(plans[0], **BY)
    prune(store)
    assert list(faults_of(store)) == []
    assert [row.id for row in store.plans()] == plans


def test_a_surface_of_added_and_profiled_cells_is_the_same_after_a_prune(store: SqlStore) -> None:
    profile(store, *OLD)
    store.add_measurements(SURFACE, [cell(1, 9.0)])
    profile(store, *NEW)
    store.add_measurements(SURFACE, [cell(2, 8.0)])
    store.add_measurements(SURFACE, [cell(2, 7.0), cell(3, 3.0)])
    before = store.surfaces()
    prune(store)
    assert store.surfaces() == before


def test_of_each_plan_the_newest_observations_stay_where_that_is_asked_for(store: SqlStore) -> None:
    for plan_id in (add_plan(store, *OLD), add_plan(store, *OLD, note="other")):
        for document in "abc":
            store.add_observation(plan_id, document)
    assert taken(store) == {}
    told = prune(store, observations=2, dry_run=True)
    assert told == [Pruned(kind="observation", of=f"plan {plan_id}", rows=1) for plan_id in (1, 2)]
    assert prune(store, observations=2) == told
    assert [store.observations(plan_id) for plan_id in (1, 2)] == [["b", "c"]] * 2
    assert list(faults_of(store)) == []


@pytest.mark.parametrize("went_on", [False, True])
def test_a_profile_that_nobody_went_on_with_is_abandoned(store: SqlStore, went_on: bool) -> None:
    journal = store.open_profile("key")
    journal.add_visit(VISIT)
    with store._writing() as session:
        for name in ("profile", "visit"):
            session.connection().exec_driver_sql(f"UPDATE spectune_{name} SET created = '2020-01-01'")
    if went_on:
        journal.add_part("text", "{}")
    assert prune(store) == ([] if went_on else [Pruned(kind="profile", of="key", rows=1)])
    assert store.open_profile("key").is_resumed is went_on


def test_the_files_of_a_store_get_smaller_though_another_has_it_open(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with SqlStore(resolve_url(str(file))) as store:
        plan_id = add_plan(store, *OLD)
        for _ in range(50):
            store.add_observation(plan_id, "x" * 20_000)
    before = file.stat().st_size
    with SqlStore(resolve_url(str(file))) as store, SqlStore(resolve_url(str(file))):
        prune(store, observations=1)
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) < before / 4
