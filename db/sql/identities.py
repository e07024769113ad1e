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
from ...profiler.records.wire import readable, to_json
from ..rows import CellRuns, RecordPlaces, Records
from .database import Database, insert_once
from .documents import SETUPS, RecordTable, keep_newest, key_of, record_of
from .engines import wait_for_turn
from .measurements import keep_cells, overhead_row, trace_row
from .tables import DeviceTable, MeasurementTable, ModelTable, OverheadTable, SurfaceTable, TraceTable, is_temperature


class Identities(Database):
    """Devices by fingerprint and models by key; adding one again replaces it, and damaged ones hide no other."""

    def add_device(self, device: Device) -> None:
        def work(session: Session) -> None:
            known = session.scalar(select(DeviceTable).where(DeviceTable.fingerprint == device.fingerprint))
            row = known or device_row(device)
            row.document = to_json(device)
            insert_once(session, row)

        self._write(work)

    def devices(self) -> list[Device]:
        found = select(DeviceTable.document).order_by(DeviceTable.id)
        return self._read(lambda session: readable(Device, session.scalars(found)))

    def add_model(self, model: ModelIdentity) -> None:
        def work(session: Session) -> None:
            known = session.scalar(select(ModelTable).where(ModelTable.key == model.key))
            row = known or model_row(model)
            row.document = to_json(model)
            insert_once(session, row)

        self._write(work)

    def models(self) -> list[ModelIdentity]:
        found = select(ModelTable.document).order_by(ModelTable.id)
        return self._read(lambda session: readable(ModelIdentity, session.scalars(found)))

    def find_model(self, key: str) -> ModelIdentity | None:
        def work(session: Session) -> ModelIdentity | None:
            row = session.scalar(select(ModelTable).where(ModelTable.key == key))
            return None if row is None else record_of(ModelIdentity, row, self.url)

        return self._read(work)


def device_row(device: Device) -> DeviceTable:
    """Return the row of a device that the store does not know yet."""
    return DeviceTable(fingerprint=device.fingerprint, kind_key=device.kind_key, document=to_json(device))


def model_row(model: ModelIdentity) -> ModelTable:
    """Return the row of a model that the store does not know yet."""
    return ModelTable(key=model.key, document=to_json(model))


class Imports(Database):
    """Records from files, each added only where the store lacks it; unreadable rows equal none, and stop none."""

    def missing_places(self, records: Records) -> RecordPlaces:
        return self._read(lambda session: self._missing(session, records))

    def keep_records(self, records: Records) -> RecordPlaces:
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
        found = select(MeasurementTable.document).join(SurfaceTable).filter_by(**key_of(surface))
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
