"""What is new in a store: highest numbers and counts of its rows, so that a memory of them stays current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.wire import readable
from .database import Database
from .documents import columns_of, rows_of
from .migrate import stored_versions
from .rows import PlanEvent, PlanRow
from .tables import DeviceTable, ModelTable, PlanEventTable, PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Of each table the highest id that was seen, 0 where it was empty, and how many rows there were."""

    plan: int = 0
    plans: int = 0
    event: int = 0
    events: int = 0
    device: int = 0
    devices: int = 0
    model: int = 0
    models: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a store holds beyond what was known, all of it seen at one moment.

    Plans and events are new or all, oldest first; devices and models are all readable ones, None without a new one.
    """

    known: Known
    plans: Sequence[PlanRow]
    is_all_plans: bool
    events: Sequence[PlanEvent]
    is_all_events: bool
    devices: Sequence[Device] | None
    models: Sequence[ModelIdentity] | None


def news_of(database: Database, known: Known) -> News:
    """Return what is new; where numbers and counts contradict each other, everything is."""
    with database._reading() as session:
        now = _now(session)
        plans = _plans_after(session, known.plan) if now.plan != known.plan else []
        is_all_plans = known.plans + len(plans) != now.plans
        events = _events_after(session, known.event) if now.event != known.event else []
        is_all_events = known.events + len(events) != now.events
        return News(
            known=now,
            plans=_plans_after(session, 0) if is_all_plans else plans,
            is_all_plans=is_all_plans,
            events=_events_after(session, 0) if is_all_events else events,
            is_all_events=is_all_events,
            devices=_devices(session) if (now.device, now.devices) != (known.device, known.devices) else None,
            models=_models(session) if (now.model, now.models) != (known.model, known.models) else None,
        )


def schema_of(database: Database) -> str:
    """Return which version of the schema the database says it has."""
    with database._reading() as session:
        return ", ".join(stored_versions(session.connection()))


def _now(session: Session) -> Known:
    columns = [
        select(summary).scalar_subquery()
        for summary in (
            func.max(PlanTable.id),
            func.count(PlanTable.id),
            func.max(PlanEventTable.id),
            func.count(PlanEventTable.id),
            func.max(DeviceTable.id),
            func.count(DeviceTable.id),
            func.max(ModelTable.id),
            func.count(ModelTable.id),
        )
    ]
    numbers = session.execute(select(*columns)).one()
    names = (field.name for field in fields(Known))
    return Known(**{name: number or 0 for name, number in zip(names, numbers, strict=True)})


def _plans_after(session: Session, plan_id: int) -> list[PlanRow]:
    found = select(*columns_of(PlanTable, PlanRow)).where(PlanTable.id > plan_id).order_by(PlanTable.id)
    return rows_of(session, PlanRow, found)


def _events_after(session: Session, event_id: int) -> list[PlanEvent]:
    found = select(*columns_of(PlanEventTable, PlanEvent)).where(PlanEventTable.id > event_id)
    return rows_of(session, PlanEvent, found.order_by(PlanEventTable.id))


def _devices(session: Session) -> list[Device]:
    return readable(Device, session.scalars(select(DeviceTable.document).order_by(DeviceTable.id)))


def _models(session: Session) -> list[ModelIdentity]:
    return readable(ModelIdentity, session.scalars(select(ModelTable.document).order_by(ModelTable.id)))
