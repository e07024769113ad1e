"""Plans as text that is checked, and what became of their promises."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from ..errors import NoPlanError, StoreError
from .database import Database
from .tables import ObservationTable, PlanTable, ValidationTable, is_temperature

WHAT_IF = "what-if:"  # stands before the device of a plan that rests on anything but measurements of that device

OutcomeTable = type[ObservationTable] | type[ValidationTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What a store says about one plan; versions count the plans of one device and setup from 1."""

    id: int
    version: int
    device: str  # Device.fingerprint
    device_kind: str  # Device.kind_key
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    created: str  # UTC, ISO 8601
    content_hash: str  # sha256 of the text, 64 hex digits


class Plans(Database):
    """Plans, observations and validations, only ever added; their texts are other floors' records."""

    def add_plan(
        self, plan_json: str, *, device: str, device_kind: str, target: str, workload: str, temperature: float
    ) -> int:
        """Keep a plan's text with its hash and return its id.

        Args:
            plan_json: the plan, returned byte for byte.
            device: Device.fingerprint.
            device_kind: Device.kind_key.
            target: ModelIdentity.key.
            workload: name of the prompts.
            temperature: of the requests; within 1e-9 is the same setup.
        """
        setup = _setup(PlanTable.device == device, target, workload, temperature)
        row = PlanTable(device=device, device_kind=device_kind, target=target, workload=workload)
        row.temperature, row.document, row.content_hash = temperature, plan_json, _hash(plan_json)
        with self._writing() as session:
            row.version = 1 + (session.scalar(select(func.max(PlanTable.version)).where(*setup)) or 0)
            session.add(row)
            session.flush()
            return row.id

    def find_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> PlanRow:
        """Return the newest plan of a setup, made on exactly this device or on any device of this kind.

        Raises:
            NoPlanError: the store holds none.
            StoreError: not exactly one of device and device_kind is given.
        """
        if (device is None) == (device_kind is None):
            raise StoreError(f"give device or device_kind, one of them, got {device!r} and {device_kind!r}")
        place = PlanTable.device_kind == device_kind if device is None else PlanTable.device == device
        setup = _setup(place, target, workload, temperature)
        with self._reading() as session:
            row = session.scalar(select(PlanTable).where(*setup).order_by(PlanTable.id.desc()).limit(1))
            if row is not None:
                return _plan_row(row)
        where = f"device {device}" if device_kind is None else f"device kind {device_kind}"
        raise NoPlanError(f"target {target} on {where}, workload {workload!r}, temperature {temperature:g}", self.url)

    def newest_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> str:
        """Return the text of the newest plan of a setup, as find_plan chooses it.

        Raises:
            NoPlanError: the store holds none.
            StoreError: not exactly one of device and device_kind is given, or the text is damaged.
        """
        found = self.find_plan(
            device=device, device_kind=device_kind, target=target, workload=workload, temperature=temperature
        )
        return self.plan(found.id)

    def plan(self, plan_id: int) -> str:
        """Return the text of one plan, byte for byte as it was added.

        Raises:
            StoreError: there is no such plan, or its text no longer has its hash.
        """
        with self._reading() as session:
            row = self._existing(session, plan_id)
            if _hash(row.document) != row.content_hash:
                raise StoreError(f"plan {plan_id} in {self.url} was changed after it was stored; run: spectune plan")
            return row.document

    def plans(self) -> list[PlanRow]:
        """Return what the store says about every plan, oldest first."""
        columns = [getattr(PlanTable, field.name) for field in fields(PlanRow)]
        with self._reading() as session:
            return [PlanRow(**row) for row in session.execute(select(*columns).order_by(PlanTable.id)).mappings()]

    def add_observation(self, plan_id: int, document: str) -> None:
        """Keep what a decoder saw while it ran a plan.

        Raises:
            StoreError: there is no such plan.
        """
        self._append(ObservationTable, plan_id, document)

    def observations(self, plan_id: int) -> list[str]:
        """Return every observation of a plan, oldest first."""
        return self._documents(ObservationTable, plan_id)

    def add_validation(self, plan_id: int, document: str) -> None:
        """Keep what a plan delivered when it was measured.

        Raises:
            StoreError: there is no such plan.
        """
        self._append(ValidationTable, plan_id, document)

    def validations(self, plan_id: int) -> list[str]:
        """Return every validation of a plan, oldest first."""
        return self._documents(ValidationTable, plan_id)

    def _append(self, table: OutcomeTable, plan_id: int, document: str) -> None:
        with self._writing() as session:
            session.add(table(plan_id=self._existing(session, plan_id).id, document=document))

    def _documents(self, table: OutcomeTable, plan_id: int) -> list[str]:
        with self._reading() as session:
            return list(session.scalars(select(table.document).filter_by(plan_id=plan_id).order_by(table.id)))

    def _existing(self, session: Session, plan_id: int) -> PlanTable:
        row = session.get(PlanTable, plan_id)
        if row is None:
            raise StoreError(f"there is no plan {plan_id} in {self.url}; list them with: spectune list")
        return row


def _setup(place: ColumnElement[bool], target: str, workload: str, temperature: float) -> list[ColumnElement[bool]]:
    same_temperature = is_temperature(PlanTable.temperature, temperature)
    return [place, PlanTable.target == target, PlanTable.workload == workload, same_temperature]


def _plan_row(row: PlanTable) -> PlanRow:
    return PlanRow(**{field.name: getattr(row, field.name) for field in fields(PlanRow)})


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
