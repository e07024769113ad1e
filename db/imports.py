"""Records that come from a file instead of a profile: what the store lacks of them goes in, all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from .database import Database, insert_once
from .documents import record_of
from .identities import device_row, model_row
from .locks import wait_for_turn
from .measurements import keep_cells, overhead_row
from .tables import DeviceTable, MeasurementTable, ModelTable, OverheadTable, SurfaceTable, TraceTable, is_temperature
from .traces import trace_row


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


class Imports(Database):
    """Records from files; one that the store holds already, however old, is not added again."""

    def missing(self, records: Records) -> Records:
        """Return the part of some records that the store does not hold."""
        return self._read(lambda session: self._missing(session, records))

    def add_records(self, records: Records) -> Records:
        """Keep what the store does not hold yet, in one transaction, and return it."""

        def work(session: Session) -> Records:
            wait_for_turn(session, "records")  # or two that bring the same would both find it missing
            new = self._missing(session, records)
            for row in (*map(device_row, new.devices), *map(model_row, new.models)):
                insert_once(session, row)
            session.add_all(trace_row(trace) for trace in new.traces)
            session.add_all(overhead_row(overhead) for overhead in new.overheads)
            for surface in new.surfaces:
                keep_cells(session, surface, surface.measurements)
            return new

        return self._write(work)

    def _missing(self, session: Session, records: Records) -> Records:
        devices = set(session.scalars(select(DeviceTable.fingerprint)))
        models = set(session.scalars(select(ModelTable.key)))
        return Records(
            devices=tuple(device for device in records.devices if device.fingerprint not in devices),
            models=tuple(model for model in records.models if model.key not in models),
            surfaces=tuple(self._new_parts(session, records.surfaces)),
            traces=tuple(trace for trace in records.traces if trace not in self._recorded_like(session, trace)),
            overheads=tuple(each for each in records.overheads if each not in self._measured_like(session, each)),
        )

    def _new_parts(self, session: Session, surfaces: Sequence[LatencySurface]) -> Iterator[LatencySurface]:
        """Yield each surface with its new cells only; one without any is left out."""
        for surface in surfaces:
            known = self._cells_of(session, surface)
            new = tuple(cell for cell in surface.measurements if cell not in known)
            if new:
                yield replace(surface, measurements=new)

    def _cells_of(self, session: Session, surface: LatencySurface) -> set[Measurement]:
        """Return every cell ever stored under a surface's key."""
        key = {field.name: getattr(surface, field.name) for field in fields(SurfaceKey)}
        found = select(MeasurementTable).join(SurfaceTable).filter_by(**key)
        return {record_of(Measurement, row, self.url) for row in session.scalars(found)}

    def _recorded_like(self, session: Session, trace: AcceptanceTrace) -> list[AcceptanceTrace]:
        """Return every trace ever stored of the same setup."""
        names = {name: getattr(trace, name) for name in ("target", "drafter", "workload")}
        found = select(TraceTable).filter_by(**names).where(is_temperature(TraceTable.temperature, trace.temperature))
        return [record_of(AcceptanceTrace, row, self.url) for row in session.scalars(found)]

    def _measured_like(self, session: Session, overhead: RoundOverhead) -> list[RoundOverhead]:
        """Return all host times ever stored of the same setup."""
        names = {name: getattr(overhead, name) for name in ("device", "target", "dtype")}
        rows = session.scalars(select(OverheadTable).filter_by(**names))
        return [record_of(RoundOverhead, row, self.url) for row in rows]
