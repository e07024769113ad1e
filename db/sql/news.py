"""Which plans a store holds, without reading thousands of them, and what is new of them for a memory of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ..rows import PlanRow
from ..store import Store
from .database import Database
from .documents import Record, columns_of, rows_of
from .identities import every
from .migrate import stored_versions
from .plans import with_states
from .tables import DeviceTable, ModelTable, PlanEventTable, PlanTable

NOTHING = (0, 0)
Known = dict[str, tuple[int, int]]  # by table its highest id, 0 where it is empty, and how many rows it has


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
class StateChange:
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
    return database._rows(SetupRow, select(*setup, *numbers).group_by(*setup))


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
class PlanNews:
    """What a store holds beyond what was known, all of it seen at one moment.

    Plans and events are new or all, oldest first; devices and models are all readable ones, None without a new one.
    """

    known: Known
    plans: Sequence[PlanRow]
    is_all_plans: bool
    events: Sequence[StateChange]
    is_all_events: bool
    devices: Sequence[Device] | None
    models: Sequence[ModelIdentity] | None


def news_of(database: Database, known: Known) -> PlanNews:
    """Return what is new; where numbers and counts contradict each other, everything is."""
    with database._reading() as session:
        now = _now(session)
        plans, is_all_plans = _since(session, PlanTable, PlanRow, known, now)
        events, is_all_events = _since(session, PlanEventTable, StateChange, known, now)
        changed = [name for name in now if now[name] != known.get(name, NOTHING)]
        return PlanNews(
            known=now,
            plans=plans,
            is_all_plans=is_all_plans,
            events=events,
            is_all_events=is_all_events,
            devices=every(session, Device) if DeviceTable.__tablename__ in changed else None,
            models=every(session, ModelIdentity) if ModelTable.__tablename__ in changed else None,
        )


def schema_of(database: Database) -> str:
    """Return which version of the schema the database says it has."""
    with database._reading() as session:
        return ", ".join(stored_versions(session.connection()))


def _now(session: Session) -> Known:
    tables: tuple[Any, ...] = (PlanTable, PlanEventTable, DeviceTable, ModelTable)  # Any: SQLAlchemy's classes
    asked = [select(summary(table.id)).scalar_subquery() for table in tables for summary in (func.max, func.count)]
    numbers = [number or 0 for number in session.execute(select(*asked)).one()]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {table.__tablename__: pair for table, pair in zip(tables, pairs, strict=True)}


def _since(
    session: Session, table: Any, record: type[Record], known: Known, now: Known
) -> tuple[list[Record], bool]:  # Any: a table
    """Return the rows that are new, or all where counts do not fit what was known, and whether it is all."""
    name = table.__tablename__
    (last, rows), (newest, count) = known.get(name, NOTHING), now[name]
    found = select(*columns_of(table, record)).order_by(table.id)
    new = rows_of(session, record, found.where(table.id > last)) if newest != last else []
    is_all = rows + len(new) != count
    return rows_of(session, record, found) if is_all else new, is_all
