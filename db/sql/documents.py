"""Records as they lie in a store: columns by name, JSON text, and which of a setup is the newest."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Executable, func, select
from sqlalchemy.orm import Session

from ...errors import SpectuneError, StoreError
from ...profiler.protocols import SurfaceKey
from ...profiler.records.surface import LatencySurface
from ...profiler.records.wire import from_json
from ..rows import SurfaceRow
from ..sources import SurfaceManifest
from .tables import (
    Base,
    DeviceTable,
    MeasurementTable,
    ModelTable,
    OverheadTable,
    PairwiseTable,
    SurfaceTable,
    TraceTable,
    moment_after,
    utc_now,
)

Record = TypeVar("Record")
DocumentTable = DeviceTable | MeasurementTable | ModelTable | OverheadTable | PairwiseTable | TraceTable
Surface = SurfaceKey | LatencySurface | SurfaceTable | SurfaceRow | SurfaceManifest


def record_of(kind: type[Record], row: DocumentTable, shown_url: str) -> Record:
    """Return the validated record of a row; raise StoreError, which names the row, where the text is none."""
    try:
        return from_json(kind, row.document)
    except SpectuneError as error:
        place = f"row {row.id} of {row.__tablename__} in {shown_url}"
        raise StoreError(f"{place} was damaged or written by another version of spectune: {error}") from error


def columns_of(table: type[Base], record: Any) -> list[Any]:  # Any: a dataclass; SQLAlchemy's columns
    """Return the columns of a table that a record's fields are named after."""
    return [getattr(table, field.name) for field in fields(record) if hasattr(table, field.name)]


def rows_of(session: Session, record: type[Record], query: Executable) -> list[Record]:
    """Return what a query finds, each row as a record."""
    return [record(**row) for row in session.execute(query).mappings()]


def key_of(surface: Surface) -> dict[str, str]:
    """Return the fields of a surface's `SurfaceKey` by name."""
    return {field.name: getattr(surface, field.name) for field in fields(SurfaceKey)}


RecordTable = OverheadTable | TraceTable | PairwiseTable

SETUPS: dict[type[RecordTable], tuple[str, ...]] = {  # the columns that a record shares with those it may supersede
    OverheadTable: ("device", "target", "dtype"),
    TraceTable: ("target", "drafter", "workload"),
    PairwiseTable: ("names_hash",),
}


def setup_columns(row: RecordTable) -> dict[str, str]:
    """Return what a row shares with those that it may supersede."""
    return {name: getattr(row, name) for name in SETUPS[type(row)]}


def keep_newest(session: Session, row: RecordTable) -> None:
    """Write a row as the newest of its setup, as part of a transaction, though a clock was ahead before."""
    last = session.scalar(select(func.max(type(row).created)).filter_by(**setup_columns(row)))
    row.created = utc_now() if last is None else max(utc_now(), moment_after(last))
    session.add(row)
