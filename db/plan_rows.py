"""Which plans a store holds, without reading thousands of them: setups with their newest, and the newest of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from .database import Database
from .documents import rows_of
from .plans import with_states
from .rows import PlanRow
from .store import Store
from .tables import PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRow:
    """What plans of one setup have in common, and how many there are."""

    device: str  # Device.fingerprint
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    newest: int  # id of its newest plan
    plans: int


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
