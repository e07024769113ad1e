"""What devices cost: every cell ever timed, and the surfaces the newest of them make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import cast

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from ..profiler.protocols import SurfaceKey
from ..profiler.records.measurement import Measurement
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface, Role
from ..profiler.records.wire import to_json
from .database import Database, insert_once
from .documents import record_of
from .tables import MeasurementTable, OverheadTable, SurfaceTable


class Measurements(Database):
    """Timings, only ever added; a `profiler.protocols.MeasurementSink`."""

    def add(self, surface: SurfaceKey, measurement: Measurement) -> None:
        """Keep one cell of a surface, raw repeats or failure included."""
        self.add_measurements(surface, [measurement])

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        """Keep cells of one surface, all of them or, after an error, none."""
        with self._writing() as session:
            surface_id = _surface_id(session, surface)
            session.add_all(_row(surface_id, measurement) for measurement in measurements)

    def surfaces(
        self, device: str | None = None, model: str | None = None, dtype: str | None = None
    ) -> list[LatencySurface]:
        """Return one surface per key, made of the newest measurement of every (batch, context, tokens).

        A failure that is newer than a timing hides it. Cells are sorted by (batch, context, tokens).

        Args:
            device: only this Device.fingerprint.
            model: only this ModelIdentity.key.
            dtype: only this number format.
        """
        wanted = {SurfaceTable.device: device, SurfaceTable.model: model, SurfaceTable.dtype: dtype}
        filters = [column == value for column, value in wanted.items() if value is not None]
        with self._reading() as session:
            cells = _newest_cells(session, filters)
            groups = groupby(cells, key=lambda cell: cell[0])
            return [self._surface(key, [row for _, row in group]) for key, group in groups]

    def add_overhead(self, overhead: RoundOverhead) -> None:
        """Keep the host time per round of one target on one device."""
        keys = {"device": overhead.device, "target": overhead.target, "dtype": overhead.dtype}
        with self._writing() as session:
            session.add(OverheadTable(**keys, document=to_json(overhead)))

    def overhead(self, device: str, target: str, dtype: str) -> RoundOverhead | None:
        """Return the newest host times of a target on a device, None where they were never measured."""
        found = select(OverheadTable).filter_by(device=device, target=target, dtype=dtype)
        with self._reading() as session:
            row = session.scalar(found.order_by(OverheadTable.id.desc()).limit(1))
            return None if row is None else record_of(RoundOverhead, row, self.url)

    def _surface(self, key: SurfaceTable, rows: Iterable[MeasurementTable]) -> LatencySurface:
        return LatencySurface(
            device=key.device,
            model=key.model,
            role=cast(Role, key.role),  # the surface checks it
            regime=key.regime,
            dtype=key.dtype,
            measurements=tuple(record_of(Measurement, row, self.url) for row in rows),
        )


def _surface_id(session: Session, key: SurfaceKey) -> int:
    found = select(SurfaceTable.id).filter_by(**asdict(key))
    if session.scalar(found) is None:
        insert_once(session, SurfaceTable(**asdict(key)))
    return session.scalars(found).one()


def _row(surface_id: int, measurement: Measurement) -> MeasurementTable:
    return MeasurementTable(
        surface_id=surface_id,
        batch=measurement.batch,
        context_tokens=measurement.context_tokens,
        tokens=measurement.tokens,
        document=to_json(measurement),
    )


def _newest_cells(
    session: Session, filters: Sequence[ColumnElement[bool]]
) -> Iterator[tuple[SurfaceTable, MeasurementTable]]:
    """Yield the newest row of every cell, those of one surface together."""
    cell = (MeasurementTable.batch, MeasurementTable.context_tokens, MeasurementTable.tokens)
    newest = select(func.max(MeasurementTable.id)).group_by(MeasurementTable.surface_id, *cell)
    rows = (
        select(SurfaceTable, MeasurementTable).join(MeasurementTable).where(MeasurementTable.id.in_(newest), *filters)
    )
    yield from session.execute(rows.order_by(SurfaceTable.id, *cell))
