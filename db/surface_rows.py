"""Which surfaces a store holds, without reading a million cells of theirs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from ..profiler.protocols import SurfaceKey
from .database import Database
from .measurements import counting_cells
from .tables import MeasurementTable, SurfaceTable

Newest = aliased(MeasurementTable)  # of a surface


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceRow:
    """One surface: its key, how many timings were ever kept of it, and when the newest was."""

    id: int
    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: str
    regime: str
    dtype: str
    attention: str
    timings: int  # older ones of the same cell included
    newest: str  # UTC, ISO 8601

    @property
    def key(self) -> SurfaceKey:
        """What tells surfaces apart."""
        return SurfaceKey(**{field.name: getattr(self, field.name) for field in fields(SurfaceKey)})


class SurfaceRows(Database):
    """Surfaces by their numbers."""

    def surface_rows(
        self, limit: int | None = None, after: int | None = None, *, device: str | None = None
    ) -> list[SurfaceRow]:
        """Return rows of timed surfaces in the order first measured: of a Device.fingerprint, an id above `after`."""
        own = MeasurementTable.surface_id == SurfaceTable.id
        timings = select(func.count()).select_from(MeasurementTable).where(own).scalar_subquery()
        last = select(func.max(MeasurementTable.id)).where(own).scalar_subquery()
        found = select(SurfaceTable, timings.label("timings"), Newest.created)
        found = found.join(Newest, Newest.id == last).where(
            *([SurfaceTable.device == device] if device is not None else []),
            *([SurfaceTable.id > after] if after is not None else []),
        )
        found = found.order_by(SurfaceTable.id).limit(limit)

        def work(session: Session) -> list[SurfaceRow]:
            names = [field.name for field in fields(SurfaceKey)]
            return [
                SurfaceRow(id=row.id, **{name: getattr(row, name) for name in names}, timings=counted, newest=newest)
                for row, counted, newest in session.execute(found)
            ]

        return self._read(work)

    def timings_of(self, **wanted: str | None) -> int:
        """Return how many timings make the surfaces whose key has these values, older ones left out; None is any."""
        filters = [getattr(SurfaceTable, name) == value for name, value in wanted.items() if value is not None]
        found = select(func.count()).select_from(counting_cells(filters).subquery())
        return self._read(lambda session: session.scalar(found) or 0)
