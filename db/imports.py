"""Records that come from a file instead of a profile: what the store lacks of them goes in, all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import readable
from .database import Database, insert_once
from .identities import device_row, model_row
from .locks import wait_for_turn
from .measurements import keep_cells, overhead_row
from .newest import SETUPS, RecordTable, keep_newest
from .tables import DeviceTable, MeasurementTable, ModelTable, OverheadTable, SurfaceTable, TraceTable, is_temperature
from .traces import trace_row


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """Some cells of one surface: half-open ranges of their places."""

    surface: int  # its place
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlaces:
    """Which of some records are meant, by their places: so that whoever has sent them need not get them back."""

    devices: tuple[int, ...] = ()
    models: tuple[int, ...] = ()
    cells: tuple[CellRuns, ...] = ()
    traces: tuple[int, ...] = ()
    overheads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What a file brings: surfaces, host times and traces, and the devices and models they name."""

    devices: tuple[Device, ...] = ()
    models: tuple[ModelIdentity, ...] = ()
    surfaces: tuple[LatencySurface, ...] = ()
    traces: tuple[AcceptanceTrace, ...] = ()
    overheads: tuple[RoundOverhead, ...] = ()

    @property
    def cells(self) -> int:
        """Cells of all surfaces."""
        return sum(len(surface.measurements) for surface in self.surfaces)

    def at(self, places: RecordPlaces) -> Records:
        """Return the records at these places; raise IndexError where there are fewer."""
        surfaces = [(self.surfaces[part.surface], part.runs) for part in places.cells]
        return Records(
            devices=tuple(self.devices[place] for place in places.devices),
            models=tuple(self.models[place] for place in places.models),
            surfaces=tuple(
                replace(surface, measurements=tuple(c for begin, end in runs for c in surface.measurements[begin:end]))
                for surface, runs in surfaces
            ),
            traces=tuple(self.traces[place] for place in places.traces),
            overheads=tuple(self.overheads[place] for place in places.overheads),
        )


class Imports(Database):
    """Records from files, each added only where the store lacks it; unreadable rows equal none, and stop none."""

    def missing(self, records: Records) -> Records:
        """Return the part of some records that the store does not hold."""
        return records.at(self.missing_places(records))

    def missing_places(self, records: Records) -> RecordPlaces:
        """Return where among some records those are that the store does not hold."""
        return self._read(lambda session: self._missing(session, records))

    def add_records(self, records: Records) -> Records:
        """Keep what the store does not hold yet, in one transaction, and return it."""
        return records.at(self.keep_records(records))

    def keep_records(self, records: Records) -> RecordPlaces:
        """Keep what the store does not hold yet, in one transaction, and return where among the records it is."""

        def work(session: Session) -> RecordPlaces:
            wait_for_turn(session, "records")  # or two that bring the same would both find it missing
            places = self._missing(session, records)
            new = records.at(places)
            for row in (*map(device_row, new.devices), *map(model_row, new.models)):
                insert_once(session, row)
            superseding: list[RecordTable] = [*map(trace_row, new.traces), *map(overhead_row, new.overheads)]
            for record in superseding:
                keep_newest(session, record)
            for surface in new.surfaces:
                keep_cells(session, surface, surface.measurements)
            return places

        return self._write(work)

    def _missing(self, session: Session, records: Records) -> RecordPlaces:
        devices = set(session.scalars(select(DeviceTable.fingerprint)))
        models = set(session.scalars(select(ModelTable.key)))
        return RecordPlaces(
            devices=_places(device.fingerprint not in devices for device in records.devices),
            models=_places(model.key not in models for model in records.models),
            cells=tuple(self._new_cells(session, records.surfaces)),
            traces=_places(trace not in self._recorded_like(session, trace) for trace in records.traces),
            overheads=_places(each not in self._measured_like(session, each) for each in records.overheads),
        )

    def _new_cells(self, session: Session, surfaces: Sequence[LatencySurface]) -> Iterator[CellRuns]:
        for place, surface in enumerate(surfaces):
            known = self._cells_of(session, surface)
            new = [cell not in known for cell in surface.measurements]
            if any(new):
                yield CellRuns(surface=place, runs=tuple(_runs(new)))

    def _cells_of(self, session: Session, surface: LatencySurface) -> set[Measurement]:
        key = {field.name: getattr(surface, field.name) for field in fields(SurfaceKey)}
        found = select(MeasurementTable.document).join(SurfaceTable).filter_by(**key)
        return set(readable(Measurement, session.scalars(found)))

    def _recorded_like(self, session: Session, trace: AcceptanceTrace) -> list[AcceptanceTrace]:
        names = {name: getattr(trace, name) for name in SETUPS[TraceTable]}
        found = select(TraceTable.document).filter_by(**names)
        found = found.where(is_temperature(TraceTable.temperature, trace.temperature))
        return readable(AcceptanceTrace, session.scalars(found))

    def _measured_like(self, session: Session, overhead: RoundOverhead) -> list[RoundOverhead]:
        names = {name: getattr(overhead, name) for name in SETUPS[OverheadTable]}
        return readable(RoundOverhead, session.scalars(select(OverheadTable.document).filter_by(**names)))


def _places(flags: Iterable[bool]) -> tuple[int, ...]:
    return tuple(place for place, flag in enumerate(flags) if flag)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    for flag, group in groupby(range(len(flags)), key=lambda place: flags[place]):
        places = list(group)
        if flag:
            yield places[0], places[-1] + 1
