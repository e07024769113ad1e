"""The devices and models a store knows, and records that a file brings: what lacks goes in, all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.surface import LatencySurface
from ...profiler.records.wire import readable
from ..rows import CellRuns, RecordPlaces, Records, key_of
from .database import Database, insert_once
from .documents import SETUPS, TABLES, Record, keep_newest, record_of, row_of, setup_columns
from .engines import wait_for_turn
from .measurements import keep_cells
from .tables import DeviceTable, MeasurementTable, ModelTable, SurfaceTable, TraceTable, is_temperature


class IdentityRows(Database):
    """Devices by fingerprint and models by key; adding one again replaces it, and damaged ones hide no other."""

    def add_device(self, device: Device) -> None:
        self._replace(device)

    def devices(self) -> list[Device]:
        return self._read(lambda session: every(session, Device))

    def add_model(self, model: ModelIdentity) -> None:
        self._replace(model)

    def models(self) -> list[ModelIdentity]:
        return self._read(lambda session: every(session, ModelIdentity))

    def find_model(self, key: str) -> ModelIdentity | None:
        def work(session: Session) -> ModelIdentity | None:
            row = session.scalar(select(ModelTable).where(ModelTable.key == key))
            return None if row is None else record_of(ModelIdentity, row, self.url)

        return self._read(work)

    def _replace(self, record: Device | ModelIdentity) -> None:
        def work(session: Session) -> None:
            new = row_of(record)
            row = session.scalar(select(type(new)).filter_by(**setup_columns(new))) or new
            row.document = new.document
            insert_once(session, row)

        self._write(work)


def every(session: Session, kind: type[Record]) -> list[Record]:
    """Return all readable devices or models, in the order they were first added."""
    table = TABLES[kind]
    return readable(kind, session.scalars(select(table.document).order_by(table.id)))


class Imports(Database):
    """Records from files, each added only where the store lacks it; unreadable rows equal none, and stop none."""

    def missing_places(self, records: Records) -> RecordPlaces:
        return self._read(lambda session: self._missing(session, records))

    def keep_records(self, records: Records) -> RecordPlaces:
        def work(session: Session) -> RecordPlaces:
            wait_for_turn(session, "records")  # or two that bring the same would both find it missing
            places = self._missing(session, records)
            new = records.at(places)
            for identity in (*new.devices, *new.models):
                insert_once(session, row_of(identity))
            for record in (*new.traces, *new.overheads):
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
            traces=_places(each not in self._alike(session, each) for each in records.traces),
            overheads=_places(each not in self._alike(session, each) for each in records.overheads),
        )

    def _new_cells(self, session: Session, surfaces: Sequence[LatencySurface]) -> Iterator[CellRuns]:
        for place, surface in enumerate(surfaces):
            found = select(MeasurementTable.document).join(SurfaceTable).filter_by(**key_of(surface))
            known = set(readable(Measurement, session.scalars(found)))
            new = [cell not in known for cell in surface.measurements]
            if any(new):
                yield CellRuns(surface=place, runs=tuple(_runs(new)))

    def _alike(self, session: Session, record: AcceptanceTrace | RoundOverhead) -> list[object]:
        kind = type(record)
        table = TABLES[kind]
        found = select(table.document).filter_by(**{name: getattr(record, name) for name in SETUPS[table]})
        if isinstance(record, AcceptanceTrace):
            found = found.where(is_temperature(TraceTable.temperature, record.temperature))
        return readable(kind, session.scalars(found))


def _places(flags: Iterable[bool]) -> tuple[int, ...]:
    return tuple(place for place, flag in enumerate(flags) if flag)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    for flag, group in groupby(range(len(flags)), key=lambda place: flags[place]):
        places = list(group)
        if flag:
            yield places[0], places[-1] + 1
