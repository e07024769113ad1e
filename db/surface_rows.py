"""Which surfaces a store holds, without reading a million cells of theirs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from ..profiler.protocols import SurfaceKey
from .database import Database
from .tables import MeasurementTable, SurfaceTable

if TYPE_CHECKING:
    from .store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceRow:
    """One surface: its key, how many timings were ever kept of it, and when the newest was."""

    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: str
    regime: str
    dtype: str
    attention: str
    timings: int  # older ones of the same cell included
    newest: str  # UTC, ISO 8601; "" where the store does not tell


def surface_rows(store: Store) -> list[SurfaceRow]:
    """Return what is known of every surface, in the order they were first measured.

    A store that is no database is asked for the surfaces themselves, and does not tell when they were measured.
    """
    if isinstance(store, Database):
        return _rows(store)
    return [SurfaceRow(**_key(surface), timings=len(surface.measurements), newest="") for surface in store.surfaces()]


def timings_of(database: Database, **wanted: str | None) -> int:
    """Return how many timings were ever kept of the surfaces whose key has these values; None is any."""
    given = {name: value for name, value in wanted.items() if value is not None}
    found = select(func.count()).select_from(MeasurementTable)
    if given:
        found = found.where(MeasurementTable.surface_id.in_(select(SurfaceTable.id).filter_by(**given)))
    with database._reading() as session:
        return session.scalar(found) or 0


def _rows(database: Database) -> list[SurfaceRow]:
    own = MeasurementTable.surface_id
    counted = select(own, func.count().label("timings"), func.max(MeasurementTable.id).label("last")).group_by(own)
    per_surface = counted.subquery()
    found = (
        select(SurfaceTable, per_surface.c.timings, MeasurementTable.created)
        .join(per_surface, per_surface.c.surface_id == SurfaceTable.id)
        .join(MeasurementTable, MeasurementTable.id == per_surface.c.last)
        .order_by(SurfaceTable.id)
    )
    with database._reading() as session:
        return [
            SurfaceRow(**_key(surface), timings=timings, newest=newest)
            for surface, timings, newest in session.execute(found)
        ]


def _key(record: object) -> dict[str, str]:
    return {field.name: getattr(record, field.name) for field in fields(SurfaceKey)}
