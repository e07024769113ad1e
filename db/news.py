"""What is new in a store: highest numbers and counts of its rows, so that a memory of them can be kept current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import func, select

from .database import Database
from .migrate import stored_versions
from .plans import PlanRow
from .tables import DeviceTable, ModelTable, PlanEventTable, PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Of each table the highest id, 0 where it is empty, and of some how many rows there are."""

    plan: int = 0
    plans: int = 0
    event: int = 0
    events: int = 0
    device: int = 0
    model: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of a plan's state."""

    id: int
    plan_id: int
    action: str  # "promoted", "retired" or "restored"


def newest(database: Database) -> Newest:
    """Return the highest numbers and counts, by looks into indexes."""
    columns = [
        select(summary).scalar_subquery()
        for summary in (
            func.max(PlanTable.id),
            func.count(PlanTable.id),
            func.max(PlanEventTable.id),
            func.count(PlanEventTable.id),
            func.max(DeviceTable.id),
            func.max(ModelTable.id),
        )
    ]
    with database._reading() as session:
        numbers = session.execute(select(*columns)).one()
    names = (field.name for field in fields(Newest))
    return Newest(**{name: number or 0 for name, number in zip(names, numbers, strict=True)})


def plans_after(database: Database, plan_id: int) -> Sequence[PlanRow]:
    """Return what the store says about plans with a higher id, oldest first."""
    columns = [getattr(PlanTable, field.name) for field in fields(PlanRow) if hasattr(PlanTable, field.name)]
    found = select(*columns).where(PlanTable.id > plan_id).order_by(PlanTable.id)
    with database._reading() as session:
        return [PlanRow(**row) for row in session.execute(found).mappings()]


def events_after(database: Database, event_id: int) -> Sequence[Event]:
    """Return changes of plans' states with a higher id, oldest first."""
    columns = (PlanEventTable.id, PlanEventTable.plan_id, PlanEventTable.action)
    found = select(*columns).where(PlanEventTable.id > event_id).order_by(PlanEventTable.id)
    with database._reading() as session:
        return [Event(**row) for row in session.execute(found).mappings()]


def schema_of(database: Database) -> str:
    """Return which version of the schema the database says it has."""
    with database._reading() as session:
        return ", ".join(stored_versions(session.connection()))
