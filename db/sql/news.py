"""Which plans a store holds, without reading thousands of them, and what is new of them for a memory of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ...profiler.records.wire import readable
from ..rows import PlanRow
from ..store import Store
from .database import Database
from .documents import columns_of, rows_of
from .migrate import stored_versions
from .plans import with_states
from .tables import DeviceTable, ModelTable, PlanEventTable, PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRow:
    """What plans of one setup have in common, and how many there are."""

    device: str  # Device.fingerprint
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    newest: int  # id of its newest plan
    plans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of a plan's state, without who did it and why, which may be long."""

    id: int
    plan_id: int
    action: str  # "promoted", "retired" or "restored"


def setup_rows(store: Store) -> list[SetupRow]:
    """Return every setup that has a plan, the one with the newest plan first."""
    found = _grouped(store) if isinstance(store, Database) else _counted(store.plans())
    return sorted(found, key=lambda row: -row.newest)


def newest_plans(store: Store, most: int, devices: Sequence[str] = ()) -> list[PlanRow]:
    """Return the store's rows of the newest plans, newest first, at most so many, of these devices or of all."""
    if not isinstance(store, Database):
        rows = [row for row in store.plans() if not devices or row.device in devices]
        return rows[::-1][:most]
    wanted = select(PlanTable.id).order_by(PlanTable.id.desc()).limit(most)
    ids = wanted.where(PlanTable.device.in_(devices)) if devices else wanted
    with store._reading() as session:
        found = with_states().where(PlanTable.id.in_(session.scalars(ids).all()))
        return rows_of(session, PlanRow, found.order_by(PlanTable.id.desc()))


def _grouped(database: Database) -> list[SetupRow]:
    setup = (PlanTable.device, PlanTable.target, PlanTable.workload, PlanTable.temperature)
    numbers = (func.max(PlanTable.id).label("newest"), func.count(PlanTable.id).label("plans"))
    with database._reading() as session:
        return rows_of(session, SetupRow, select(*setup, *numbers).group_by(*setup))


def _counted(rows: Iterable[PlanRow]) -> list[SetupRow]:
    found: dict[tuple[str, str, str, float], list[int]] = {}
    for row in rows:
        found.setdefault((row.device, row.target, row.workload, row.temperature), []).append(row.id)
    return [
        SetupRow(device=device, target=target, workload=work, temperature=heat, newest=max(ids), plans=len(ids))
        for (device, target, work, heat), ids in found.items()
    ]


def counting(store: Store, rows: Iterable[PlanRow]) -> dict[int, int]:
    """Return by plan which one counts for its setup, without retired ones; rows are all plans, oldest first."""
    setups: dict[tuple[str, str, str, float], list[PlanRow]] = {}
    for row in rows:
        if row.state != "retired":
            setups.setdefault((row.device, row.target, row.workload, round(row.temperature, 9)), []).append(row)
    counts = {setup: _counting_of(store, plans) for setup, plans in setups.items()}
    return {row.id: counts[setup] for setup, plans in setups.items() for row in plans}


def _counting_of(store: Store, plans: Sequence[PlanRow]) -> int:
    promoted = [row for row in plans if row.state == "promoted"]
    if len(promoted) < 2:
        return (promoted or plans)[-1].id
    last = promoted[-1]
    return store.find_plan(
        device=last.device, target=last.target, workload=last.workload, temperature=last.temperature
    ).id


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
    events: Sequence[Event]
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


def _events_after(session: Session, event_id: int) -> list[Event]:
    found = select(*columns_of(PlanEventTable, Event)).where(PlanEventTable.id > event_id)
    return rows_of(session, Event, found.order_by(PlanEventTable.id))


def _devices(session: Session) -> list[Device]:
    return readable(Device, session.scalars(select(DeviceTable.document).order_by(DeviceTable.id)))


def _models(session: Session) -> list[ModelIdentity]:
    return readable(ModelIdentity, session.scalars(select(ModelTable.document).order_by(ModelTable.id)))
