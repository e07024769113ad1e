"""What devices cost: every cell ever timed, and the surfaces the newest of them make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session, aliased

from ..errors import StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.measurement import Measurement
from ..profiler.records.overhead import RoundOverhead, joined
from ..profiler.records.role import run_alike
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import to_json
from .database import Database, insert_once
from .documents import columns_of, key_of, record_of
from .newest import keep_newest
from .rows import SurfaceRow
from .tables import MeasurementTable, OverheadTable, SurfaceTable

CELL = (MeasurementTable.batch, MeasurementTable.context_tokens, MeasurementTable.tokens)
PROFILED = (MeasurementTable.profile_id, MeasurementTable.surface_id, MeasurementTable.batch)
Newest = aliased(MeasurementTable)  # of a surface


class Measurements(Database):
    """Timings, only ever added."""

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        self._write(lambda session: keep_cells(session, surface, measurements))

    def surfaces(
        self,
        device: str | None = None,
        model: str | None = None,
        dtype: str | None = None,
        **further: str | None,
    ) -> list[LatencySurface]:
        filters = _of_key(device=device, model=model, dtype=dtype, **further)

        def work(session: Session) -> list[LatencySurface]:
            groups = groupby(_newest_cells(session, filters), key=lambda cell: cell[0])
            return [self._surface(key, [row for _, row in group]) for key, group in groups]

        return self._read(work)

    def surface_rows(
        self, limit: int | None = None, after: int | None = None, *, device: str | None = None
    ) -> list[SurfaceRow]:
        own = MeasurementTable.surface_id == SurfaceTable.id
        timings = select(func.count()).select_from(MeasurementTable).where(own).scalar_subquery()
        last = select(func.max(MeasurementTable.id)).where(own).scalar_subquery()
        columns = (*columns_of(SurfaceTable, SurfaceRow), timings.label("timings"), Newest.created.label("newest"))
        found = select(*columns).join(Newest, Newest.id == last)
        found = found.where(SurfaceTable.id > (after or 0), *_of_key(device=device))
        return self._rows(SurfaceRow, found.order_by(SurfaceTable.id).limit(limit))

    def timings_of(self, **wanted: str | None) -> int:
        """Return how many timings make the surfaces whose key has these values, older ones left out; None is any."""
        found = select(func.count()).select_from(counting_cells(_of_key(**wanted)).subquery())
        return self._read(lambda session: session.scalar(found) or 0)

    def add_overhead(self, overhead: RoundOverhead) -> None:
        self._write(lambda session: keep_newest(session, overhead_row(overhead)))

    def overhead(self, device: str, target: str, dtype: str, regime: str | None = None) -> RoundOverhead | None:
        times = self.host_times(device, target, dtype, regime)
        return joined(times) if times else None

    def host_times(self, device: str, target: str, dtype: str, regime: str | None = None) -> list[RoundOverhead]:
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
        cells = tuple(record_of(Measurement, row, self.url) for row in rows)
        return LatencySurface(**key_of(key), measurements=cells)


def _of_key(**wanted: str | None) -> list[ColumnElement[bool]]:
    return [getattr(SurfaceTable, name) == value for name, value in wanted.items() if value is not None]


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
    key = key_of(surface)
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
