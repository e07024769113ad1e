"""Records as they lie in a store: columns by name, JSON text, and which of a setup is the newest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Executable, func, select
from sqlalchemy.orm import Session

from ...errors import SpectuneError, StoreError
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.wire import from_json, to_json
from .tables import (
    DeviceTable,
    MeasurementTable,
    ModelTable,
    OverheadTable,
    PairwiseTable,
    TraceTable,
    moment_after,
    utc_now,
)

Record = TypeVar("Record")
ROWS_AT_ONCE = 100  # traces can be large


class Kind(NamedTuple):
    """How one kind of record lies in a store."""

    record: Any  # Any: a class of records
    table: Any  # Any: that of their rows
    setup: tuple[str, ...]  # columns that a row shares with those it replaces or supersedes


SUPERSEDED: dict[str, Kind] = {  # every one is kept, and the newest of its setup counts
    "overhead": Kind(RoundOverhead, OverheadTable, ("device", "target", "dtype")),
    "trace": Kind(AcceptanceTrace, TraceTable, ("target", "drafter", "workload")),
    "pairwise": Kind(PairwiseAcceptance, PairwiseTable, ("names_hash",)),
}
IDENTITIES: dict[str, Kind] = {  # one of each
    "device": Kind(Device, DeviceTable, ("fingerprint",)),
    "model": Kind(ModelIdentity, ModelTable, ("key",)),
}
KINDS = IDENTITIES | SUPERSEDED
TABLES: dict[type, Any] = {kind.record: kind.table for kind in KINDS.values()} | {Measurement: MeasurementTable}
SETUPS: dict[Any, tuple[str, ...]] = {kind.table: kind.setup for kind in KINDS.values()}


def row_of(record: object, **further: Any) -> Any:  # Any: values of its table's columns, and its row
    """Return the row of a record: its text, and the columns that are named after what it says."""
    table = TABLES[type(record)]
    if isinstance(record, PairwiseAcceptance):
        further["names_hash"] = names_hash(record.models)
    names = (column.key for column in table.__table__.columns)
    own = {name: getattr(record, name) for name in names if hasattr(record, name)}
    return table(**own, **further, document=to_json(record))


def names_hash(models: Iterable[str]) -> str:
    """Return the key of a set of models, in any order."""
    return hashlib.sha256(json.dumps(sorted(models)).encode()).hexdigest()


def record_of(kind: type[Record], row: Any, shown_url: str) -> Record:  # Any: a row with a document
    """Return the validated record of a row; raise StoreError, which names the row, where the text is none."""
    try:
        return from_json(kind, row.document)
    except SpectuneError as error:
        place = f"row {row.id} of {row.__tablename__} in {shown_url}"
        raise StoreError(f"{place} was damaged or written by another version of spectune: {error}") from error


def columns_of(table: Any, record: Any) -> list[Any]:  # Any: a table; a dataclass; SQLAlchemy's columns
    """Return the columns of a table that a record's fields are named after."""
    return [getattr(table, field.name) for field in fields(record) if hasattr(table, field.name)]


def rows_of(session: Session, record: type[Record], query: Executable) -> list[Record]:
    """Return what a query finds, each row as a record."""
    return [record(**row) for row in session.execute(query).mappings()]


def all_rows(session: Session, table: Any) -> Iterator[Any]:  # Any: a table, and its rows
    """Yield the rows of a table by number, some at a time: documents can be large."""
    last = 0
    while rows := session.scalars(select(table).where(table.id > last).order_by(table.id).limit(ROWS_AT_ONCE)).all():
        yield from rows
        last = rows[-1].id
        session.expunge_all()


def seen_as(record: type[Record], row: object) -> Record:
    """Return a record of what a row says by the names of its fields."""
    named: Any = record  # Any: a dataclass
    return record(**{field.name: getattr(row, field.name) for field in fields(named)})


def setup_columns(row: Any) -> dict[str, str]:  # Any: a row of one of the kinds
    """Return what a row shares with those that it replaces or supersedes."""
    return {name: getattr(row, name) for name in SETUPS[type(row)]}


def keep_newest(session: Session, record: object) -> None:
    """Write a record as the newest of its setup, as part of a transaction, though a clock was ahead before."""
    row = row_of(record)
    last = session.scalar(select(func.max(type(row).created)).filter_by(**setup_columns(row)))
    row.created = utc_now() if last is None else max(utc_now(), moment_after(last))
    session.add(row)
