"""What was measured: what devices cost, by every cell ever timed, and what drafters are worth, by recorded traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session, aliased

from ...errors import StoreError
from ...profiler.protocols import SurfaceKey
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.measurement import Measurement
from ...profiler.records.overhead import RoundOverhead, joined
from ...profiler.records.role import run_alike
from ...profiler.records.surface import LatencySurface
from ..rows import SurfaceRow, TraceRow, key_of
from .database import Database, insert_once
from .documents import columns_of, keep_newest, names_hash, record_of, row_of
from .tables import MeasurementTable, OverheadTable, PairwiseTable, SurfaceTable, TraceTable, is_temperature

CELL = (MeasurementTable.batch, MeasurementTable.context_tokens, MeasurementTable.tokens)
PROFILED = (MeasurementTable.profile_id, MeasurementTable.surface_id, MeasurementTable.batch)
Newest = aliased(MeasurementTable)  # of a surface
Texts = tuple[str, str, float | None]  # those models were compared along: their target, workload and temperature


class Measurements(Database):
    """Timings, only ever added."""

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        self._write(lambda session: keep_cells(session, surface, measurements))

    def surfaces(
        self, device: str | None = None, model: str | None = None, dtype: str | None = None, **further: str | None
    ) -> list[LatencySurface]:
        filters = _of_key(device=device, model=model, dtype=dtype, **further)

        def work(session: Session) -> list[LatencySurface]:
            groups = groupby(_newest_cells(session, filters), key=lambda cell: cell[0])
            cells = ((key, tuple(record_of(Measurement, row, self.url) for _, row in group)) for key, group in groups)
            return [LatencySurface(**key_of(key), measurements=measurements) for key, measurements in cells]

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
        self._write(lambda session: keep_newest(session, overhead))

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
    session.add_all(row_of(cell, surface_id=surface_id, profile_id=profile_id) for cell in measurements)


def surface_id_of(session: Session, surface: SurfaceKey | LatencySurface) -> int:
    """Return the number of a surface, which is written where it is new."""
    key = key_of(surface)
    found = select(SurfaceTable.id).filter_by(**key)
    if session.scalar(found) is None:
        insert_once(session, SurfaceTable(**key))
    return session.scalars(found).one()


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


class Traces(Database):
    """Recordings, only ever added; the newest of each kind is the one returned."""

    def add_trace(self, trace: AcceptanceTrace) -> None:
        self._write(lambda session: keep_newest(session, trace))

    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        newest = select(func.max(TraceTable.id)).filter_by(target=target, workload=workload)
        newest = newest.where(is_temperature(TraceTable.temperature, temperature)).group_by(TraceTable.drafter)
        found = select(TraceTable).where(TraceTable.id.in_(newest)).order_by(TraceTable.id)
        return self._read(lambda session: [record_of(AcceptanceTrace, row, self.url) for row in session.scalars(found)])

    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        found = select(*columns_of(TraceTable, TraceRow)).where(TraceTable.id > (after or 0))
        return self._rows(TraceRow, found.order_by(TraceTable.id).limit(limit))

    def trace(self, trace_id: int) -> AcceptanceTrace:
        def work(session: Session) -> AcceptanceTrace:
            row = session.get(TraceTable, trace_id)
            if row is None:
                raise StoreError(f"there is no trace {trace_id} in {self.url}; list them with: spectune list")
            return record_of(AcceptanceTrace, row, self.url)

        return self._read(work)

    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        self._write(lambda session: keep_newest(session, pairwise))

    def pairwise(self, models: Iterable[str], **along: Any) -> PairwiseAcceptance | None:
        found = select(PairwiseTable).filter_by(names_hash=names_hash(models)).order_by(PairwiseTable.id.desc())

        def work(session: Session) -> PairwiseAcceptance | None:
            agreements = (record_of(PairwiseAcceptance, row, self.url) for row in session.scalars(found))
            return next((each for each in agreements if is_along(each, **along)), None)

        return self._read(work)


def texts_along(pairwise: PairwiseAcceptance) -> Texts:
    """Return along which texts models were compared: models of the same names agree otherwise along others."""
    return pairwise.target, pairwise.workload, pairwise.temperature


def is_along(
    pairwise: PairwiseAcceptance,
    target: str | None = None,
    workload: str | None = None,
    temperature: float | None = None,
) -> bool:
    """Return whether models were compared along these texts; None means any."""
    asked = (target, workload, temperature)
    return all(wanted in (None, seen) for wanted, seen in zip(asked, texts_along(pairwise), strict=True))
