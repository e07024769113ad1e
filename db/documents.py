"""Records as they lie in a store: JSON text, refused with its place where it is damaged."""

from __future__ import annotations

from typing import TypeVar

from ..errors import SpectuneError, StoreError
from ..profiler.records.wire import from_json
from .tables import DeviceTable, MeasurementTable, ModelTable, OverheadTable, PairwiseTable, TraceTable

Record = TypeVar("Record")
DocumentTable = DeviceTable | MeasurementTable | ModelTable | OverheadTable | PairwiseTable | TraceTable


def record_of(kind: type[Record], row: DocumentTable, shown_url: str) -> Record:
    """Return the validated record of a row; raise StoreError, which names the row, where the text is none."""
    try:
        return from_json(kind, row.document)
    except SpectuneError as error:
        place = f"row {row.id} of {row.__tablename__} in {shown_url}"
        raise StoreError(f"{place} was damaged or written by another version of spectune: {error}") from error
