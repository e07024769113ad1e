"""The devices and models a store knows, so that keys elsewhere in it can be explained."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.wire import readable, to_json
from .database import Database, insert_once
from .documents import record_of
from .tables import DeviceTable, ModelTable


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
