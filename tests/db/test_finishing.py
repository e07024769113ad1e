"""How a profile ends: its surfaces and its records go into the store whole, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import OpenProfile, Store, open_store
from spectune.errors import StoreError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json

from ..support.journal_records import AGREEMENT, OVERHEAD, SURFACE, TRACE, VISIT

KEY = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32", attention="sdpa")
FULL_AT_THE_LAST_ROW = """
CREATE TRIGGER disk_is_full AFTER UPDATE ON spectune_profile BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END
"""


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db") if request.param == "file" else "sqlite://") as opened:
        yield opened


def count(file: Path, table: str) -> int:
    with sqlite3.connect(file) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM spectune_{table}").fetchone()
    connection.close()
    return int(rows)


def with_surfaces(store: Store) -> OpenProfile:
    journal = store.open_profile("key")
    journal.add_visit(VISIT)
    journal.finish_surfaces([SURFACE])
    return journal


def test_finished_surfaces_are_in_the_store(store: Store) -> None:
    with_surfaces(store)
    assert store.surfaces() == [SURFACE]


def test_finished_surfaces_take_the_place_of_the_visits(store: Store) -> None:
    assert with_surfaces(store).visits() == []


def test_finished_surfaces_are_a_part(store: Store) -> None:
    document = with_surfaces(store).part("surfaces")
    assert document is not None
    assert from_json(tuple[LatencySurface, ...], document) == (SURFACE,)


def test_surfaces_are_finished_once(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        journal = with_surfaces(store)
        with pytest.raises(StoreError, match=r"part 'surfaces' of profile 1 .* is already there"):
            journal.finish_surfaces([SURFACE])
    assert count(tmp_path / "store.db", "measurement") == len(SURFACE.measurements)


def test_surfaces_that_cannot_be_finished_leave_everything_as_it_was(store: Store) -> None:
    journal = store.open_profile("key")
    journal.add_visit(VISIT)
    journal.add_part("surfaces", "taken")
    with pytest.raises(StoreError):
        journal.finish_surfaces([SURFACE])
    assert (journal.visits(), journal.part("surfaces")) == ([VISIT], "taken")
    assert store.surfaces() == []


def test_a_cell_that_cannot_be_stored_leaves_everything_as_it_was(store: Store) -> None:
    journal = store.open_profile("key")
    journal.add_visit(VISIT)
    too_long = Measurement(batch=1, context_tokens=0, tokens=10**30, failure="does not fit the column")
    with pytest.raises((OverflowError, StoreError)):
        journal.finish_surfaces([SURFACE, replace(SURFACE, role="draft", measurements=(too_long,))])
    assert (journal.visits(), journal.part("surfaces")) == ([VISIT], None)
    assert store.surfaces() == []


def test_a_finished_profile_drops_its_parts(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        with_surfaces(store).finish()
    assert [count(tmp_path / "store.db", table) for table in ("visit", "part")] == [0, 0]


def test_what_a_profile_finishes_with_is_in_the_store(store: Store) -> None:
    with_surfaces(store).finish(overhead=OVERHEAD, traces=[TRACE], pairwise=[AGREEMENT])
    assert store.overhead("device", "target", "float32") == OVERHEAD
    assert store.traces("target", "chat", 0.0) == [TRACE]
    assert store.pairwise(["large", "small"]) == AGREEMENT


def test_a_profile_that_cannot_finish_keeps_nothing_and_stays_open(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        journal = with_surfaces(store)
        with sqlite3.connect(tmp_path / "store.db") as connection:
            connection.execute(FULL_AT_THE_LAST_ROW)
        connection.close()
        with pytest.raises(StoreError, match="disk is full; free some space"):
            journal.finish(overhead=OVERHEAD, traces=[TRACE], pairwise=[AGREEMENT])
        assert store.trace_rows() == []
        assert store.overhead("device", "target", "float32") is None
        assert store.open_profile("key").part("surfaces") is not None


def test_a_finished_profile_keeps_its_measurements(store: Store) -> None:
    with_surfaces(store).finish()
    assert store.surfaces() == [SURFACE]


@pytest.mark.parametrize("write", ["visit", "part", "surfaces", "finish"])
def test_a_finished_profile_refuses_more(store: Store, write: str) -> None:
    journal = with_surfaces(store)
    journal.finish()
    writes = {
        "visit": lambda: journal.add_visit(VISIT),
        "part": lambda: journal.add_part("name", "document"),
        "surfaces": lambda: journal.finish_surfaces([SURFACE]),
        "finish": journal.finish,
    }
    with pytest.raises(StoreError, match="is finished and takes nothing more"):
        writes[write]()


def timed(tokens: int, ms: float, batch: int = 1) -> Measurement:
    return Measurement(batch=batch, context_tokens=0, tokens=tokens, repeats_ms=(ms,))


def finish(store: Store, *cells: Measurement) -> None:
    journal = store.open_profile("key")
    journal.finish_surfaces([replace(SURFACE, measurements=cells)])
    journal.finish()


def kept(store: Store) -> list[tuple[int, int, float]]:
    (surface,) = store.surfaces()
    return [(cell.batch, cell.tokens, cell.median_ms) for cell in surface.measurements]


def test_the_cells_of_an_older_profile_are_not_laid_between_those_of_a_newer(store: Store) -> None:
    finish(store, timed(1, 1.0), timed(4, 4.0))
    finish(store, timed(1, 2.0), timed(8, 16.0))
    assert kept(store) == [(1, 1, 2.0), (1, 8, 16.0)]


def test_a_batch_that_the_newer_profile_left_out_stays(store: Store) -> None:
    finish(store, timed(1, 1.0), timed(1, 8.0, batch=8))
    finish(store, timed(1, 2.0))
    assert kept(store) == [(1, 1, 2.0), (8, 1, 8.0)]


def test_a_cell_added_after_a_profile_belongs_to_its_surface_and_one_added_before_does_not(store: Store) -> None:
    store.add_measurements(KEY, [timed(2, 9.0)])
    finish(store, timed(1, 1.0))
    store.add_measurements(KEY, [timed(3, 3.0)])
    assert kept(store) == [(1, 1, 1.0), (1, 3, 3.0)]


def test_the_profile_that_finished_last_counts_whichever_began_first(store: Store) -> None:
    first, second = store.open_profile("first"), store.open_profile("second")
    second.finish_surfaces([replace(SURFACE, measurements=(timed(1, 2.0),))])
    first.finish_surfaces([replace(SURFACE, measurements=(timed(1, 1.0),))])
    assert kept(store) == [(1, 1, 1.0)]
