"""What decides in a store decides in its copy: which profile's cells make a surface, and which plan counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.db.exchange.folder import read_folder, write_folder
from spectune.db.exchange.merge import merge
from spectune.db.exchange.prune import prune
from spectune.db.exchange.records import SharedEvent, SharedPlan, SharedSurface, everything
from spectune.db.sql.documents import row_of
from spectune.db.sql.sql_store import SqlStore
from spectune.profiler.records.measurement import Measurement

from ...support.empty_stores import Open, new
from ...support.postgres_server import postgres
from ...support.store_records import SETUP, agreement, cell, other_surface, overhead, surface, trace

__all__ = ["new", "postgres"]

FAILED = Measurement(batch=1, context_tokens=128, tokens=64, failure="out of memory")
BY = {"by": "ada", "reason": "faster"}


def profile(store: SqlStore, *cells: Measurement) -> None:
    journal = store.open_profile("key")
    journal.finish_surfaces([surface(*cells)])
    journal.finish()


def surface_of(store: SqlStore) -> SharedSurface:
    (found,) = (item for item in everything(store) if isinstance(item, SharedSurface))
    return found


def keep_plans(store: SqlStore, *notes: str) -> None:
    for note in notes:
        store.add_plan(f'"{note}"', device="device", device_kind="kind", **SETUP)


def counting(store: SqlStore) -> str:
    return store.plan(store.find_plan(device="device", **SETUP).id)


@pytest.mark.parametrize("folders", [("alice", "bob"), ("both", "both")])
def test_profiles_of_two_stores_stay_apart_though_they_share_a_number(
    new: Open, tmp_path: Path, folders: tuple[str, str]
) -> None:
    alice, bob, other = new(), new(), new()
    profile(alice, cell(1, 1.0), cell(3, 3.0))
    profile(bob, cell(2, 2.0))
    list(write_folder(everything(bob), tmp_path / folders[1]))
    list(write_folder(everything(alice), tmp_path / folders[0]))  # read first: what is older is left out
    assert merge(other, lambda: read_folder(tmp_path)).added == {"measurement": 3}
    assert other.surfaces() == bob.surfaces()


def test_surfaces_of_one_profile_stay_together(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    surfaces = [surface(cell(1, 1.0)), surface(cell(1, 2.0), key=other_surface("role"))]
    store.open_profile("key").finish_surfaces(surfaces)
    list(write_folder(everything(store), tmp_path))
    merge(other, lambda: read_folder(tmp_path))
    found = [item for item in everything(other) if isinstance(item, SharedSurface)]
    assert [each.profile for item in found for each in item.cells] == [1, 1]


def test_a_shape_that_fails_again_comes_in_again(new: Open) -> None:
    store, other = new(), new()
    for ms in (1.0, 2.0):
        profile(store, cell(1, ms), FAILED)
        assert merge(other, lambda: everything(store)).added == {"measurement": 2}
    assert other.surfaces() == store.surfaces() == [surface(cell(1, 2.0), FAILED)]
    assert merge(other, lambda: everything(store)).added == {}


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_cell_that_was_lacking_joins_its_profile(new: Open, lacking: int) -> None:
    store, other = new(), new()
    cells = [cell(1, 1.0)]
    cells.insert(lacking, FAILED)
    profile(store, *cells)
    whole = surface_of(store)
    merge(other, lambda: [replace(whole, cells=(whole.cells[1 - lacking],))])
    merge(other, lambda: [whole])
    assert other.surfaces() == store.surfaces()


def test_older_host_times_come_in_for_the_batches_that_newer_ones_lack_and_no_others(new: Open) -> None:
    store, other = new(), new()
    old, newer = overhead(1.0, regime="eager"), overhead(2.0, regime="eager")
    wide = replace(old, samples=(*old.samples, *(replace(sample, batch=64) for sample in old.samples)))
    for each in (wide, old):
        store.add_overhead(each)
    other.add_overhead(newer)
    merged = merge(other, lambda: everything(store))
    assert (merged.added, len(merged.left_out)) == ({"overhead": 1}, 1)
    found = other.overhead("device", "target", "float32")
    assert found is not None and found.samples == (*newer.samples, wide.samples[1])
    assert prune(other) == []
    assert merge(other, lambda: everything(store)).added == {}


@pytest.mark.parametrize("other", [{"target": "other"}, {"workload": "code"}, {"temperature": 0.0}])
def test_agreement_is_left_out_for_newer_along_the_same_texts_alone(new: Open, other: dict[str, Any]) -> None:
    store, other_store = new(), new()
    store.add_pairwise(agreement(1, **SETUP))
    other_store.add_pairwise(agreement(2, **{**SETUP, **other}))
    assert merge(other_store, lambda: everything(store)).added == {"pairwise": 1}
    store.add_pairwise(agreement(3, **SETUP))
    late = new()
    late.add_pairwise(agreement(4, **SETUP))
    assert len(merge(late, lambda: everything(store)).left_out) == 2


def test_the_plan_promoted_last_counts_in_a_copy_too(new: Open) -> None:
    store, other = new(), new()
    keep_plans(store, "first", "second")
    store.promote_plan(2, **BY)
    store.promote_plan(1, **BY)
    merge(other, lambda: everything(store))
    assert counting(other) == counting(store) == '"first"'


@pytest.mark.parametrize("is_setup_known", [False, True])
def test_a_plan_retired_since_an_earlier_export_comes_in_retired(
    new: Open, tmp_path: Path, is_setup_known: bool
) -> None:
    store, other = new(), new()
    keep_plans(other, *(["own"] if is_setup_known else []))
    keep_plans(store, "good", "bad")
    list(write_folder(everything(store), tmp_path / "2026-01"))
    store.retire_plan(2, **BY)
    list(write_folder(everything(store), tmp_path / "2026-02"))
    merge(other, lambda: read_folder(tmp_path))
    assert counting(other) == counting(store) == '"good"'


def test_what_two_files_tell_of_a_plan_happened_once(new: Open, tmp_path: Path) -> None:
    store, other = new(), new()
    keep_plans(store, "plan")
    store.promote_plan(1, **BY)
    list(write_folder(everything(store), tmp_path / "2026-01"))
    store.retire_plan(1, **BY)
    list(write_folder(everything(store), tmp_path / "2026-02"))
    merge(other, lambda: read_folder(tmp_path))
    assert other.plan_events(1) == store.plan_events(1)


def test_a_plan_that_was_here_is_not_retired_from_elsewhere(new: Open) -> None:
    store, other = new(), new()
    keep_plans(store, "first", "second")
    merge(other, lambda: everything(store))
    store.retire_plan(2, **BY)
    merge(other, lambda: everything(store))
    assert counting(other) == '"second"'


def test_a_clock_that_was_set_back_revives_no_plan(new: Open) -> None:
    store, other = new(), new()
    keep_plans(store, "first", "second")
    first, second = everything(store)
    assert isinstance(second, SharedPlan)
    events = (
        SharedEvent(action="promoted", created="2026-02-01T12:00:00+00:00", **BY),
        SharedEvent(action="retired", created="2026-01-01T12:00:00+00:00", **BY),
    )
    merge(other, lambda: [first, replace(second, events=events)])
    assert counting(other) == '"first"'


@pytest.mark.parametrize("is_folder", [False, True])
def test_the_newest_trace_and_agreement_are_the_newest_in_a_copy_though_a_clock_was_ahead(
    new: Open, tmp_path: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = new(), new()
    for seed, minute in ((1, 5), (2, 3)):
        monkeypatch.setattr(
            "spectune.db.sql.documents.utc_now", lambda minute=minute: f"2026-01-01T12:0{minute}:00+00:00"
        )
        store.add_trace(trace(seed=seed))
        store.add_pairwise(agreement(seed))
    list(write_folder(everything(store), tmp_path / "out"))
    merged = merge(other, lambda: read_folder(tmp_path / "out") if is_folder else everything(store))
    assert merged.left_out == ()
    assert other.traces(**SETUP) == store.traces(**SETUP) == [trace(seed=2)]
    assert other.pairwise(["large", "small"]) == agreement(2)


def test_what_older_stores_kept_by_two_clocks_comes_in_in_the_order_in_which_it_was_kept(new: Open) -> None:
    store, other = new(), new()
    for seed, minute in ((1, 5), (2, 3)):
        row = row_of(trace(seed=seed))
        row.created = f"2026-01-01T12:0{minute}:00.000000+00:00"
        with store._writing() as session:
            session.add(row)
    assert merge(other, lambda: everything(store)).left_out == ()
    assert other.traces(**SETUP) == store.traces(**SETUP)


def test_a_record_that_cannot_be_read_stops_no_merge(new: Open) -> None:
    store, other = new(), new()
    store.add_overhead(overhead(1.0))
    row = row_of(overhead(2.0))  # newer than what comes in, as a newer version may write it
    row.document = "{}"
    other._write(lambda session: session.add(row))
    assert merge(other, lambda: everything(store)).added == {"overhead": 1}
