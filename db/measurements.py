"""What devices cost: every cell ever timed, and the surfaces the newest of them make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from ..errors import StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.measurement import Measurement
from ..profiler.records.overhead import RoundOverhead, joined
from ..profiler.records.role import run_alike
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import to_json
from .database import Database, insert_once
from .documents import record_of
from .newest import keep_newest
from .tables import MeasurementTable, OverheadTable, SurfaceTable

CELL = (MeasurementTable.batch, MeasurementTable.context_tokens, MeasurementTable.tokens)
PROFILED = (MeasurementTable.profile_id, MeasurementTable.surface_id, MeasurementTable.batch)


class Measurements(Database):
    """Timings, only ever added."""

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        """Keep cells of one surface, raw repeats and failures included; all of them or, after an error, none."""
        self._write(lambda session: keep_cells(session, surface, measurements))

    def surfaces(
        self,
        device: str | None = None,
        model: str | None = None,
        dtype: str | None = None,
        *,
        role: str | None = None,
        regime: str | None = None,
        attention: str | None = None,
    ) -> list[LatencySurface]:
        """Return one surface per key, of each batch the cells that the newest profile timed.

        Two profiles may have met the device at different speeds, so their cells never mix. Cells added without a
        profile count one by one: the newest of equal (batch, context, tokens), failures too, unless a profile of their
        batch is newer. Cells are sorted by (batch, context, tokens). The attention "" is a kernel that is not known.
        """
        wanted = {
            SurfaceTable.device: device,
            SurfaceTable.model: model,
            SurfaceTable.dtype: dtype,
            SurfaceTable.role: role,
            SurfaceTable.regime: regime,
            SurfaceTable.attention: attention,
        }
        filters = [column == value for column, value in wanted.items() if value is not None]

        def work(session: Session) -> list[LatencySurface]:
            groups = groupby(_newest_cells(session, filters), key=lambda cell: cell[0])
            return [self._surface(key, [row for _, row in group]) for key, group in groups]

        return self._read(work)

    def add_overhead(self, overhead: RoundOverhead) -> None:
        """Keep the host time per round of one target on one device."""
        self._write(lambda session: keep_newest(session, overhead_row(overhead)))

    def overhead(self, device: str, target: str, dtype: str, regime: str | None = None) -> RoundOverhead | None:
        """Return the newest host times of a target on a device, None where they were never measured.

        They are of one regime, or one that runs alike; a batch or kind missing in the last profile comes from the one
        before. The time of storing decides, since a merge may bring older ones.
        """
        times = self.host_times(device, target, dtype, regime)
        return joined(times) if times else None

    def host_times(self, device: str, target: str, dtype: str, regime: str | None = None) -> list[RoundOverhead]:
        """Return the records that `overhead` joins, newest first: those that add something to the newer ones."""
        found = select(OverheadTable).filter_by(device=device, target=target, dtype=dtype)

        def work(session: Session) -> list[RoundOverhead]:
            rows = session.scalars(found.order_by(OverheadTable.created.desc(), OverheadTable.id.desc()))
            times = self._readable_times(rows)
            return _contributing([each for each in times if regime is None or run_alike(each.regime, regime)])

        return self._read(work)

    def _readable_times(self, rows: Iterable[OverheadTable]) -> list[RoundOverhead]:
        """Return the host times of rows, newest first, without unreadable ones; StoreError where that is the newest."""
        times: list[RoundOverhead] = []
        for row in rows:
            try:
                times.append(record_of(RoundOverhead, row, self.url))
            except StoreError:
                if not times:
                    raise
        return times

    def _surface(self, key: SurfaceTable, rows: Iterable[MeasurementTable]) -> LatencySurface:
        return LatencySurface(
            device=key.device,
            model=key.model,
            role=key.role,
            regime=key.regime,
            dtype=key.dtype,
            attention=key.attention,
            measurements=tuple(record_of(Measurement, row, self.url) for row in rows),
        )


def _contributing(times: Sequence[RoundOverhead]) -> list[RoundOverhead]:
    said: set[object] = set()
    found = []
    for each in times:
        own = {sample.like for sample in each.samples}
        if each.regime == times[0].regime and not own <= said:
            said |= own
            found.append(each)
    return found


def keep_cells(
    session: Session,
    surface: SurfaceKey | LatencySurface,
    measurements: Sequence[Measurement],
    profile_id: int | None = None,
) -> None:
    """Write cells of one surface, and which profile timed them, as part of a transaction."""
    surface_id = surface_id_of(session, surface)
    session.add_all(measurement_row(surface_id, profile_id, measurement) for measurement in measurements)


def overhead_row(overhead: RoundOverhead) -> OverheadTable:
    """Return the row of host times."""
    keys = {"device": overhead.device, "target": overhead.target, "dtype": overhead.dtype}
    return OverheadTable(**keys, document=to_json(overhead))


def surface_id_of(session: Session, surface: SurfaceKey | LatencySurface) -> int:
    """Return the number of a surface, which is written where it is new."""
    key = {field.name: getattr(surface, field.name) for field in fields(SurfaceKey)}
    found = select(SurfaceTable.id).filter_by(**key)
    if session.scalar(found) is None:
        insert_once(session, SurfaceTable(**key))
    return session.scalars(found).one()


def measurement_row(surface_id: int, profile_id: int | None, measurement: Measurement) -> MeasurementTable:
    """Return the row of a cell."""
    return MeasurementTable(
        surface_id=surface_id,
        profile_id=profile_id,
        batch=measurement.batch,
        context_tokens=measurement.context_tokens,
        tokens=measurement.tokens,
        document=to_json(measurement),
    )


def counting_cells(filters: Sequence[ColumnElement[bool]] = ()) -> Select[Any]:
    """Return the query of the newest row of every cell of its batch's newest profile; fewer surfaces are faster."""
    profiled = last_profiled_cells(filters).add_columns(*PROFILED).subquery()
    of_batch = (profiled.c.surface_id == MeasurementTable.surface_id) & (profiled.c.batch == MeasurementTable.batch)
    is_added_since = profiled.c.id.is_(None) | (MeasurementTable.id > profiled.c.id)
    counts = (MeasurementTable.profile_id == profiled.c.profile_id) | (
        MeasurementTable.profile_id.is_(None) & is_added_since
    )
    newest = select(func.max(MeasurementTable.id)).join(profiled, of_batch, isouter=True)
    return newest.where(counts, *_of_surfaces(filters)).group_by(MeasurementTable.surface_id, *CELL)


def last_profiled_cells(filters: Sequence[ColumnElement[bool]] = ()) -> Select[Any]:
    """Return the query of the last row that a profile wrote, for every surface and batch that one has timed."""
    last = select(func.max(MeasurementTable.id)).where(MeasurementTable.profile_id.is_not(None), *_of_surfaces(filters))
    return select(MeasurementTable.id).where(MeasurementTable.id.in_(last.group_by(*PROFILED[1:])))


def _of_surfaces(filters: Sequence[ColumnElement[bool]]) -> list[ColumnElement[bool]]:
    return [MeasurementTable.surface_id.in_(select(SurfaceTable.id).where(*filters))] if filters else []


def _newest_cells(
    session: Session, filters: Sequence[ColumnElement[bool]]
) -> Iterator[tuple[SurfaceTable, MeasurementTable]]:
    rows = select(SurfaceTable, MeasurementTable).join(MeasurementTable)
    rows = rows.where(MeasurementTable.id.in_(counting_cells(filters)), *filters)
    yield from session.execute(rows.order_by(SurfaceTable.id, *CELL))
