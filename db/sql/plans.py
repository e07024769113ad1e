"""Plans as text that is checked, what they were computed from, what became of them, and which of them count.

Plans are promoted, retired and restored by events, and none is ever changed. Of a setup's plans the one promoted last
counts, unless it was retired since; without one, the newest not retired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.orm import Session, aliased

from ...errors import StoreError
from ..rows import OutcomeRow, PlanEvent, PlanRow
from ..sources import PlanSource, content_hash
from ..store import no_plan
from .database import Database
from .documents import columns_of, rows_of
from .engines import wait_for_turn
from .provenance import keep_sources, sources_of
from .tables import ObservationTable, PlanEventTable, PlanTable, ValidationTable, is_temperature

Action = Literal["promoted", "retired", "restored"]
OutcomeTable = type[ObservationTable] | type[ValidationTable]
ADVICE = {
    "promoted": "only one that is not retired can be promoted; restore it first",
    "retired": "it is retired already",
    "restored": "only a retired plan can be restored",
}
Event = aliased(PlanEventTable)


class Plans(Database):
    """Plans, events and outcomes, only ever added; their texts are other floors' records."""

    def add_plan(
        self,
        document: str,
        *,
        device: str,
        device_kind: str,
        target: str,
        workload: str,
        temperature: float,
        sources: Sequence[PlanSource] = (),
    ) -> int:
        setup = setup_of(PlanTable.device == device, target, workload, temperature)

        def work(session: Session) -> int:
            wait_for_turn(session, "plans", device, target, workload)
            row = PlanTable(device=device, device_kind=device_kind, target=target, workload=workload)
            row.temperature, row.document = temperature, document
            row.version = 1 + (session.scalar(select(func.max(PlanTable.version)).where(*setup)) or 0)
            session.add(row)
            session.flush()
            keep_sources(session, row, sources)
            return row.id

        return self._write(work)

    def find_plan(self, *, device: str | None = None, device_kind: str | None = None, **setup: Any) -> PlanRow:
        missing = no_plan(self.url, **setup, device=device, device_kind=device_kind)
        place = PlanTable.device_kind == device_kind if device is None else PlanTable.device == device
        if found := self._read(lambda session: counted(session, setup_of(place, **setup))):
            return found[0]
        raise missing

    def plan(self, plan_id: int) -> str:
        def work(session: Session) -> str:
            row = self._existing(session, plan_id)
            if content_hash(row.document) != row.content_hash:
                raise StoreError(f"plan {plan_id} in {self.url} was changed after it was stored; run: spectune plan")
            return row.document

        return self._read(work)

    def plan_row(self, plan_id: int) -> PlanRow:
        def work(session: Session) -> PlanRow:
            plan = self._existing(session, plan_id)
            return rows_of(session, PlanRow, with_states().where(PlanTable.id == plan.id))[0]

        return self._read(work)

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        return self._read(lambda session: sources_of(session, self._existing(session, plan_id).id))

    def plans(
        self,
        limit: int | None = None,
        after: int | None = None,
        *,
        temperature: float | None = None,
        state: str | None = None,
        **setup: str | None,
    ) -> list[PlanRow]:
        found = with_states().where(
            PlanTable.id > (after or 0),
            *(getattr(PlanTable, name) == value for name, value in setup.items() if value is not None),
            *([is_temperature(PlanTable.temperature, temperature)] if temperature is not None else []),
            *([func.coalesce(Event.action, "kept") == state] if state is not None else []),
        )
        return self._rows(PlanRow, found.order_by(PlanTable.id).limit(limit))

    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        self._write(lambda session: self._add_event(session, plan_id, "promoted", by, reason))

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        self._write(lambda session: self._add_event(session, plan_id, "retired", by, reason))

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        self._write(lambda session: self._add_event(session, plan_id, "restored", by, reason))

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        setup = setup_of(PlanTable.device == device, target, workload, temperature)

        def work(session: Session) -> PlanRow:
            wait_for_turn(session, "plans", device, target, workload)
            present, before = ([*counted(session, setup, 2), None, None])[:2]
            if present is None or before is None:
                what = "no plan" if present is None else "no plan but the present one"
                raise StoreError(
                    f"{self.url} holds {what} for target {target} on device {device}, workload {workload!r}, "
                    f"temperature {temperature:g}; there is nothing to go back to"
                )
            self._add_event(session, present.id, "retired", by, reason)
            return before

        return self._write(work)

    def plan_events(self, plan_id: int) -> list[PlanEvent]:
        def work(session: Session) -> list[PlanEvent]:
            own = PlanEventTable.plan_id == self._existing(session, plan_id).id
            found = select(*columns_of(PlanEventTable, PlanEvent)).where(own).order_by(PlanEventTable.id)
            return rows_of(session, PlanEvent, found)

        return self._read(work)

    def add_observation(self, plan_id: int, document: str) -> None:
        self._append(ObservationTable, plan_id, document)

    def observations(self, plan_id: int) -> list[str]:
        return [row.document for row in self.outcome_rows(ObservationTable, plan_id)]

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        found = select(ObservationTable.document).filter_by(plan_id=plan_id).order_by(ObservationTable.id.desc())
        return self._read(lambda session: list(session.scalars(found.limit(limit)))[::-1])

    def add_validation(self, plan_id: int, document: str) -> None:
        self._append(ValidationTable, plan_id, document)

    def validations(self, plan_id: int) -> list[str]:
        return [row.document for row in self.outcome_rows(ValidationTable, plan_id)]

    def outcome_rows(
        self, table: OutcomeTable, plan_id: int, limit: int | None = None, after: int = 0
    ) -> list[OutcomeRow]:
        """Return observations or validations of a plan with a higher id, oldest first, at most so many."""
        found = select(table.id, table.document).filter_by(plan_id=plan_id).where(table.id > after)
        return self._rows(OutcomeRow, found.order_by(table.id).limit(limit))

    def _append(self, table: OutcomeTable, plan_id: int, document: str) -> None:
        self._write(lambda session: session.add(table(plan_id=self._existing(session, plan_id).id, document=document)))

    def _existing(self, session: Session, plan_id: int) -> PlanTable:
        row = session.get(PlanTable, plan_id)
        if row is None:
            raise StoreError(f"there is no plan {plan_id} in {self.url}; list them with: spectune list")
        return row

    def _add_event(self, session: Session, plan_id: int, action: Action, by: str, reason: str) -> None:
        """Change a plan's state in its setup's turn: whoever looks which plan counts sees what is so."""
        plan = self._existing(session, plan_id)
        wait_for_turn(session, "plans", plan.device, plan.target, plan.workload)
        last = select(PlanEventTable.action).where(PlanEventTable.plan_id == plan.id)
        state = session.scalar(last.order_by(PlanEventTable.id.desc()).limit(1)) or "kept"
        if (state == "retired") != (action == "restored"):
            raise StoreError(f"plan {plan_id} in {self.url} is {state}; {ADVICE[action]}")
        session.add(PlanEventTable(plan_id=plan.id, action=action, by=by, reason=reason))
        session.flush()


def setup_of(place: ColumnElement[bool], target: str, workload: str, temperature: float) -> list[ColumnElement[bool]]:
    """Return what plans of one setup have in common."""
    same_temperature = is_temperature(PlanTable.temperature, temperature)
    return [place, PlanTable.target == target, PlanTable.workload == workload, same_temperature]


def with_states() -> Select[tuple[object, ...]]:
    """Return the query of every plan's row and state."""
    last = select(func.max(PlanEventTable.id)).where(PlanEventTable.plan_id == PlanTable.id).scalar_subquery()
    state = func.coalesce(Event.action, "kept").label("state")
    return select(*columns_of(PlanTable, PlanRow), state).join(Event, Event.id == last, isouter=True)


def counted(session: Session, setup: list[ColumnElement[bool]], at_most: int = 1) -> list[PlanRow]:
    """Return a setup's plans in the order in which they count, those that are retired left out."""
    promoted = case((Event.action == "promoted", Event.id), else_=0)
    found = with_states().where(*setup, func.coalesce(Event.action, "kept") != "retired")
    return rows_of(session, PlanRow, found.order_by(promoted.desc(), PlanTable.id.desc()).limit(at_most))
