"""Receipts: a write and its answer are kept together or not at all, and a repetition is answered, not done."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import update

from spectune.db.jobs.receipts import IdempotencyStore, Receipt
from spectune.db.sql.service_tables import ReceiptTable
from spectune.db.sql.sql_store import SqlStore
from spectune.errors import RequestError, StoreError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement

from ...support.fresh_store import fresh_store

KEY = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
CELL = Measurement(batch=1, context_tokens=0, tokens=1, repeats_ms=(1.0,))
DONE = Receipt(status=201, body="{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


def add_cell(store: SqlStore) -> Receipt:
    store.add_measurements(KEY, [CELL])
    return DONE


def timings(store: SqlStore) -> int:
    with store._reading() as session:
        return int(session.connection().exec_driver_sql("SELECT count(*) FROM spectune_measurement").scalar_one())


def test_a_write_sent_twice_is_done_once_and_answered_alike(store: SqlStore) -> None:
    receipts = IdempotencyStore(store)
    first = receipts.once("key", "ci", "digest", lambda: add_cell(store))
    again = receipts.once("key", "ci", "digest", lambda: add_cell(store))
    assert (first.status, first.body) == (again.status, again.body)
    assert not first.is_repeated and again.is_repeated
    assert timings(store) == 1


def test_a_write_repeated_under_a_token_that_replaced_the_first_is_done_once(store: SqlStore) -> None:
    for name in ("one", "other"):
        IdempotencyStore(store).once("key", name, "digest", lambda: add_cell(store))
    assert timings(store) == 1


def test_a_key_used_for_something_else_is_refused(store: SqlStore) -> None:
    receipts = IdempotencyStore(store)
    receipts.once("key", "ci", "digest", lambda: add_cell(store))
    with pytest.raises(RequestError, match="another request"):
        receipts.once("key", "ci", "other digest", lambda: add_cell(store))
    assert timings(store) == 1


def test_a_write_that_fails_late_leaves_neither_rows_nor_a_receipt(store: SqlStore) -> None:
    def fail() -> Receipt:
        add_cell(store)
        raise StoreError("the machine stopped")

    with pytest.raises(StoreError, match="stopped"):
        IdempotencyStore(store).once("key", "ci", "digest", fail)
    assert timings(store) == 0
    assert not IdempotencyStore(store).once("key", "ci", "digest", lambda: add_cell(store)).is_repeated
    assert timings(store) == 1


def test_what_is_written_in_a_transaction_is_seen_in_it_and_outside_only_after_it(store: SqlStore) -> None:
    with ThreadPoolExecutor(1) as elsewhere, store.transaction():
        store.add_measurements(KEY, [CELL])
        assert len(store.surfaces()) == 1
        assert elsewhere.submit(store.surfaces).result() == []
    assert len(store.surfaces()) == 1


def test_of_many_equal_writes_at_once_one_is_done(store: SqlStore) -> None:
    start = Barrier(4)

    def send(_: int) -> bool:
        start.wait()
        return IdempotencyStore(store).once("key", "ci", "digest", lambda: add_cell(store)).is_repeated

    with ThreadPoolExecutor(4) as clients:
        assert sorted(clients.map(send, range(4))) == [False, True, True, True]
    assert timings(store) == 1


def test_old_receipts_are_dropped_and_new_ones_stay(store: SqlStore) -> None:
    receipts = IdempotencyStore(store)
    for key in ("old", "new"):
        receipts.once(key, "ci", "digest", lambda: add_cell(store))
    with store._writing() as session:
        session.execute(update(ReceiptTable).where(ReceiptTable.id == 1).values(created="2020"))
    assert receipts.drop_old() == 1
    assert receipts.once("new", "ci", "digest", lambda: add_cell(store)).is_repeated
