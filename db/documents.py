"""Records as they lie in a store: columns by name, and JSON text, refused with its place where it is damaged."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Executable
from sqlalchemy.orm import Session

from ..errors import SpectuneError, StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import from_json
from .rows import SurfaceRow
from .sources import SurfaceManifest
from .tables import (
    Base,
    DeviceTable,
    MeasurementTable,
    ModelTable,
    OverheadTable,
    PairwiseTable,
    SurfaceTable,
    TraceTable,
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
