"""Which plan counts: plans are promoted, retired and restored by events, and none is ever changed.

Of a setup's plans the one promoted last counts, unless it was retired since; without one, the newest not retired.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.orm import Session, aliased

from ..errors import StoreError
from .locks import wait_for_turn
from .outcomes import Outcomes
from .tables import PlanEventTable, PlanTable, is_temperature

Action = Literal["promoted", "retired", "restored"]
State = Literal["kept", "promoted", "retired", "restored"]  # "kept": nothing has happened to it
ADVICE = {
    "promoted": "only one that is not retired can be promoted; restore it first",
    "retired": "it is retired already",
    "restored": "only a retired plan can be restored",
}

Event = aliased(PlanEventTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """One change of a plan's state."""

    id: int
    plan_id: int
    action: str  # "promoted", "retired" or "restored"
    by: str  # who did it
    reason: str
    created: str  # UTC, ISO 8601


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
    state: str = "kept"  # "kept", or its last event: "promoted", "retired" or "restored"


COLUMNS = [getattr(PlanTable, field.name) for field in fields(PlanRow) if field.name != "state"]


class Shelf(Outcomes):
    """The states of plans, by events that are only ever added."""

    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count from now on, by someone for a reason; StoreError where missing or retired."""
        self._write(lambda session: self._add_event(session, plan_id, "promoted", by, reason))

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more; raise StoreError where there is none or it is retired."""
        self._write(lambda session: self._add_event(session, plan_id, "retired", by, reason))

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan, else StoreError, be one of its setup's again; it counts where newest or promoted."""
        self._write(lambda session: self._add_event(session, plan_id, "restored", by, reason))

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan that counts and return the one before, which counts now; StoreError changes nothing."""
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
        """Return everything that happened to a plan's state, oldest first."""
        columns = [getattr(PlanEventTable, field.name) for field in fields(PlanEvent)]
        found = select(*columns).where(PlanEventTable.plan_id == plan_id).order_by(PlanEventTable.id)
        return self._read(lambda session: [PlanEvent(**row) for row in session.execute(found).mappings()])

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
    """Return the query of every plan's row and state; `rows_of` reads it."""
    last = select(func.max(PlanEventTable.id)).where(PlanEventTable.plan_id == PlanTable.id).scalar_subquery()
    state = func.coalesce(Event.action, "kept").label("state")
    return select(*COLUMNS, state).join(Event, Event.id == last, isouter=True)


def has_state(*states: str) -> ColumnElement[bool]:
    """Return the condition that a plan of `with_states` is in one of these states."""
    return func.coalesce(Event.action, "kept").in_(states)


def rows_of(session: Session, query: Select[tuple[object, ...]]) -> list[PlanRow]:
    """Return the plans a query finds."""
    return [PlanRow(**row) for row in session.execute(query).mappings()]


def counted(session: Session, setup: list[ColumnElement[bool]], at_most: int = 1) -> list[PlanRow]:
    """Return a setup's plans in the order in which they count, those that are retired left out."""
    promoted = case((Event.action == "promoted", Event.id), else_=0)
    found = with_states().where(*setup, func.coalesce(Event.action, "kept") != "retired")
    return rows_of(session, found.order_by(promoted.desc(), PlanTable.id.desc()).limit(at_most))
