"""Plans as text that is checked, with what they were computed from; found again by device, target and workload."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..errors import NoPlanError, StoreError
from .locks import wait_for_turn
from .provenance import keep_sources, sources_of
from .shelf import PlanEvent, PlanRow, Shelf, counted, has_state, rows_of, setup_of, with_states
from .sources import PlanSource
from .tables import PlanTable, content_hash, is_temperature

__all__ = ["ENGINE_PLAN", "FILED_APART", "WHAT_IF", "PlanEvent", "PlanRow", "PlanSource", "Plans", "mark_of"]

ENGINE_PLAN = "engine:"  # stands before the device of a plan for another engine, which our decoder must not follow
WHAT_IF = "what-if:"  # stands before the device of a plan that rests on anything but measurements of that device
FILED_APART = (WHAT_IF, ENGINE_PLAN)


def mark_of(device: str) -> str:
    """Return the prefix of the device that a plan is filed under; none before a device's own plans."""
    return next((mark for mark in FILED_APART if device.startswith(mark)), "")


class Plans(Shelf):
    """Plans, only ever added; their texts are other floors' records."""

    def add_plan(
        self,
        plan_json: str,
        *,
        device: str,
        device_kind: str,
        target: str,
        workload: str,
        temperature: float,
        sources: Sequence[PlanSource] = (),
    ) -> int:
        """Store a plan's text, returned byte for byte, with its hash and sources, and return its id.

        `device` is a Device.fingerprint, `device_kind` a Device.kind_key, `target` a ModelIdentity.key. Temperatures
        within 1e-9 are the same setup.
        """
        setup = setup_of(PlanTable.device == device, target, workload, temperature)

        def work(session: Session) -> int:
            wait_for_turn(session, "plans", device, target, workload)
            row = PlanTable(device=device, device_kind=device_kind, target=target, workload=workload)
            row.temperature, row.document = temperature, plan_json
            row.version = 1 + (session.scalar(select(func.max(PlanTable.version)).where(*setup)) or 0)
            session.add(row)
            session.flush()
            keep_sources(session, row, sources)
            return row.id

        return self._write(work)

    def find_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> PlanRow:
        """Return the plan that counts for a setup, made on exactly this device or on any of this kind.

        It is the one promoted last and not retired since, else the newest that is not retired.

        Raises:
            NoPlanError: the store holds none.
            StoreError: not exactly one of device and device_kind is given.
        """
        if (device is None) == (device_kind is None):
            raise StoreError(f"give device or device_kind, one of them, got {device!r} and {device_kind!r}")
        place = PlanTable.device_kind == device_kind if device is None else PlanTable.device == device
        setup = setup_of(place, target, workload, temperature)
        if found := self._read(lambda session: counted(session, setup)):
            return found[0]
        where = f"device {device}" if device_kind is None else f"device kind {device_kind}"
        raise NoPlanError(f"target {target} on {where}, workload {workload!r}, temperature {temperature:g}", self.url)

    def plan(self, plan_id: int) -> str:
        """Return a plan's text, byte for byte; raise StoreError where it is missing or no longer has its hash."""

        def work(session: Session) -> str:
            row = self._existing(session, plan_id)
            if content_hash(row.document) != row.content_hash:
                raise StoreError(f"plan {plan_id} in {self.url} was changed after it was stored; run: spectune plan")
            return row.document

        return self._read(work)

    def plan_row(self, plan_id: int) -> PlanRow:
        """Return the store's row of one plan; raise StoreError where there is none."""

        def work(session: Session) -> PlanRow:
            plan = self._existing(session, plan_id)
            return rows_of(session, with_states().where(PlanTable.id == plan.id))[0]

        return self._read(work)

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return a plan's sources, none for an older version's plan; raise StoreError where there is no such plan."""
        return self._read(lambda session: sources_of(session, self._existing(session, plan_id).id))

    def plans(
        self,
        limit: int | None = None,
        after: int | None = None,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
        state: str | None = None,
    ) -> list[PlanRow]:
        """Return the store's rows of plans, oldest first.

        Of a Device.fingerprint, Device.kind_key or ModelIdentity.key, with an id above `after`, a temperature within
        1e-9, a state "kept", "promoted", "retired" or "restored".
        """
        names = {"device": device, "device_kind": device_kind, "target": target, "workload": workload}
        found = with_states().where(
            *(getattr(PlanTable, name) == value for name, value in names.items() if value is not None),
            *([is_temperature(PlanTable.temperature, temperature)] if temperature is not None else []),
            *([PlanTable.id > after] if after is not None else []),
            *([has_state(state)] if state is not None else []),
        )
        return self._read(lambda session: rows_of(session, found.order_by(PlanTable.id).limit(limit)))
