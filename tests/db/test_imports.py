"""Records from files enter a store once, all of a file or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.rows import Records
from spectune.db.sql.documents import row_of
from spectune.db.sql.measurements import surface_id_of
from spectune.db.sql.sql_store import SqlStore
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface

from ..support.store_records import overhead
from ..support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, record, texts

KEY = SurfaceKey(device=DEVICE.fingerprint, model=TARGET.key, role="verify", regime="imported:x", dtype="float32")
TRACE = record(
    SkilledDrafter(Language(seed=1), 0.7), texts(Language(seed=1), 2, lambda i: 6), every_node(2, 2), name="small"
)
NOTHING = Records()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def cell(tokens: int, *repeats_ms: float) -> Measurement:
    return Measurement(batch=1, context_tokens=64, tokens=tokens, repeats_ms=repeats_ms)


def surface(*cells: Measurement, attention: str = "") -> LatencySurface:
    return LatencySurface(
        device=KEY.device,
        model=KEY.model,
        role=KEY.role,
        regime=KEY.regime,
        dtype=KEY.dtype,
        attention=attention,
        measurements=cells,
    )


def records(*surfaces: LatencySurface) -> Records:
    return Records(devices=(DEVICE,), models=(TARGET,), surfaces=surfaces, traces=(TRACE,))


def test_what_is_added_is_found_again(store: Store) -> None:
    found = surface(cell(1, 2.0, 2.1), cell(2, 2.2))
    assert store.add_records(records(found)) == records(found)
    assert (store.devices(), store.models(), store.surfaces()) == ([DEVICE], [TARGET], [found])
    assert store.trace(1) == TRACE


def test_a_second_import_adds_nothing(store: Store) -> None:
    found = records(surface(cell(1, 2.0)))
    store.add_records(found)
    assert store.add_records(found) == NOTHING
    assert len(store.trace_rows()) == 1


def test_only_the_new_cells_of_a_surface_are_added(store: Store) -> None:
    store.add_records(Records(surfaces=(surface(cell(1, 2.0)),)))
    added = store.add_records(Records(surfaces=(surface(cell(1, 2.0), cell(2, 2.2)),)))
    assert added == Records(surfaces=(surface(cell(2, 2.2)),))


def test_an_old_file_does_not_hide_a_newer_measurement(store: Store) -> None:
    old = Records(surfaces=(surface(cell(1, 2.0)),))
    store.add_records(old)
    store.add_measurements(KEY, [cell(1, 3.0)])
    assert store.add_records(old) == NOTHING
    assert store.surfaces() == [surface(cell(1, 3.0))]


def test_a_cell_of_another_surface_is_no_known_cell(store: Store) -> None:
    store.add_records(Records(surfaces=(surface(cell(1, 2.0), attention="sdpa"),)))
    other = Records(surfaces=(surface(cell(1, 2.0), attention="eager"),))
    assert store.add_records(other) == other


def test_a_trace_of_another_seed_is_another_trace(store: Store) -> None:
    store.add_records(Records(traces=(TRACE,)))
    other = Records(traces=(replace(TRACE, seed=5),))
    assert store.add_records(other) == other


def test_a_model_the_store_knows_keeps_its_name_and_place(store: Store) -> None:
    store.add_model(TARGET)
    store.add_records(Records(models=(replace(TARGET, name="elsewhere", location=""),)))
    assert store.models() == [TARGET]


def test_rows_that_cannot_be_read_stop_no_import(store: Store) -> None:
    assert isinstance(store, SqlStore)
    found = Records(surfaces=(surface(cell(1, 2.0)),), traces=(TRACE,), overheads=(overhead(1.0),))
    with store._writing() as session:  # as a newer version may write them, or as a disk may leave them
        for row in (
            row_of(cell(1, 2.0), surface_id=surface_id_of(session, KEY)),
            row_of(TRACE),
            row_of(overhead(1.0)),
        ):
            row.document = "{}"
            session.add(row)
    assert [store.add_records(found) for _ in range(2)] == [found, NOTHING]


def test_missing_tells_what_an_import_would_add_and_adds_nothing(store: Store) -> None:
    found = records(surface(cell(1, 2.0)))
    assert store.missing(found) == found
    assert (store.devices(), store.models(), store.surfaces(), store.trace_rows()) == ([], [], [], [])


def test_an_import_that_fails_leaves_nothing_behind(store: Store) -> None:
    names_too_much = replace(surface(cell(1, 2.0)), dtype="\ud800")  # no text a database can hold
    with pytest.raises(UnicodeEncodeError):
        store.add_records(records(surface(cell(1, 2.0)), names_too_much))
    assert (store.devices(), store.surfaces(), store.trace_rows()) == ([], [], [])
