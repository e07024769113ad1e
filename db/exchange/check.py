"""Is a store what it should be? Every fault of it, found by reading all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from ...errors import SpectuneError, StoreError
from ...profiler.records.wire import from_json
from ..sources import SurfaceManifest, content_hash
from ..sql.database import Database
from ..sql.documents import SUPERSEDED, TABLES, all_rows, row_of
from ..sql.migrate import VERSION_TABLE
from ..sql.provenance import is_whole
from ..sql.service_tables import Base  # with the tables of a service
from ..sql.tables import (
    APPEND_ONLY,
    TABLE_PREFIX,
    DeviceTable,
    DoorTable,
    ManifestTable,
    MeasurementTable,
    ModelTable,
    OverheadTable,
    PairwiseTable,
    PartTable,
    PlanSourceTable,
    PlanTable,
    ProfileTable,
    SurfaceTable,
    TraceTable,
    VisitTable,
)

MOST_ORPHANS = 500  # that are told of one reference
HASHED = (MeasurementTable, OverheadTable, TraceTable, PairwiseTable, PlanTable, ManifestTable)
DERIVED = ("id", "created", "document", "content_hash", "surface_id", "profile_id")  # not told by a record alone
SOURCE_TABLES = {name: kind.table for name, kind in SUPERSEDED.items()} | {"surface": ManifestTable}
RECORDS = {table: record for record, table in TABLES.items()} | {ManifestTable: SurfaceManifest}
TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'",
}
NO_OTHER = {"sqlite": "replace", "postgresql": "truncate"}  # what rows are locked against, beside UPDATE and DELETE


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault:
    """One thing that is wrong with a store."""

    place: str  # a table's row, or what else
    what: str  # what is wrong, and what to do


def faults_of(database: Database) -> Iterator[StoreFault]:
    """Yield every fault in one line; nothing is changed.

    It checks the file or table references, the schema and its locks, every hash and record with its search columns,
    versions and sources of plans, and what profiles left behind.
    """
    for look in (_file, _schema, _locks, _orphans, _rows, _versions, _sources, _leftovers):
        found: list[StoreFault] = []
        try:
            database._read(_into(found, look))
        except StoreError as error:
            found.append(StoreFault(place=database.url, what=str(error)))
        yield from found


def _into(found: list[StoreFault], look: Callable[[Session], Iterator[StoreFault]]) -> Callable[[Session], None]:
    """Return what fills a list, so that what was found before an error is not lost; a repeated call begins again."""

    def work(session: Session) -> None:
        found.clear()
        found.extend(look(session))

    return work


def _file(session: Session) -> Iterator[StoreFault]:
    if session.connection().dialect.name == "sqlite":
        for (line,) in session.execute(text("PRAGMA integrity_check(20)")):
            if line != "ok":
                yield StoreFault(place="the file", what=f"{line}; restore it from a backup")


def _schema(session: Session) -> Iterator[StoreFault]:
    options = {"version_table": VERSION_TABLE, "include_name": _is_ours}
    context = MigrationContext.configure(session.connection(), opts=options)
    for difference in compare_metadata(context, Base.metadata):
        first = difference[0] if isinstance(difference, tuple) else difference[0][0]
        yield StoreFault(place="the schema", what=f"{first} would be needed: it was changed by hand; restore a backup")


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:  # Any: alembic's mapping of names
    return kind != "table" or (name or "").startswith(TABLE_PREFIX)


def _locks(session: Session) -> Iterator[StoreFault]:
    dialect = session.connection().dialect.name
    if dialect not in TRIGGERS:
        return
    there = set(session.scalars(text(TRIGGERS[dialect])))
    for table in APPEND_ONLY:
        for what in ("update", "delete", NO_OTHER[dialect]):
            if f"{table}_no_{what}" not in there:
                yield StoreFault(place=table, what=f"its lock against {what} is gone; restore a backup")
    if session.scalar(select(func.count()).select_from(DoorTable)):
        yield StoreFault(place=DoorTable.__tablename__, what="a row stands in it, so nothing is locked; delete it")


def _orphans(session: Session) -> Iterator[StoreFault]:
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            there = select(key.column)
            lost = select(table.c.id).where(key.parent.is_not(None), key.parent.not_in(there)).order_by(table.c.id)
            for number in session.scalars(lost.limit(MOST_ORPHANS)):
                yield StoreFault(place=f"row {number} of {table.name}", what=f"{key.parent.name} points nowhere")


def _rows(session: Session) -> Iterator[StoreFault]:
    for table in (DeviceTable, ModelTable, *HASHED):
        for row in all_rows(session, table):
            if fault := _fault_of(row):
                yield StoreFault(place=f"row {row.id} of {row.__tablename__}", what=fault)


def _fault_of(row: Any) -> str | None:  # Any: a row of one of several tables
    if isinstance(row, HASHED) and content_hash(row.document) != row.content_hash:
        return "its text no longer has its hash: it was changed after it was kept; restore a backup"
    try:
        made = _made_anew(row)
    except SpectuneError as error:
        return f"its text is no such record ({error}); restore a backup"
    wrong = [
        column.name
        for column in row.__table__.columns
        if made is not None and column.name not in DERIVED and getattr(made, column.name) != getattr(row, column.name)
    ]
    return f"its {', '.join(wrong)} is not what its text says; restore a backup" if wrong else None


def _made_anew(row: Any) -> Any:  # Any: a row of one of several tables
    """Return the row that would store the record now; None where other floors know the record."""
    kind = RECORDS.get(type(row))
    record = None if kind is None else from_json(kind, row.document)
    return row_of(record) if kind in TABLES else None


def _versions(session: Session) -> Iterator[StoreFault]:
    setup = (PlanTable.device, PlanTable.target, PlanTable.workload, PlanTable.temperature, PlanTable.version)
    twice = select(*setup).group_by(*setup).having(func.count() > 1)
    for device, target, workload, temperature, version in session.execute(twice):
        where = f"target {target}, device {device}, workload {workload!r}, temperature {temperature:g}"
        yield StoreFault(
            place=f"plans of {where}", what=f"two of them are version {version}; tell them apart by number"
        )


def _sources(session: Session) -> Iterator[StoreFault]:
    for kind, table in SOURCE_TABLES.items():
        there = select(table.content_hash)
        gone = select(PlanSourceTable).where(
            PlanSourceTable.kind == kind, PlanSourceTable.is_held, PlanSourceTable.content_hash.not_in(there)
        )
        for row in session.scalars(gone.order_by(PlanSourceTable.id)):
            yield StoreFault(place=f"plan {row.plan_id}", what=f"its {kind} {row.name!r} is gone; restore a backup")
    held = select(PlanSourceTable.content_hash).where(PlanSourceTable.is_held)
    for manifest in session.scalars(select(ManifestTable).where(ManifestTable.content_hash.in_(held))):
        if not is_whole(session, manifest.document):
            place = f"row {manifest.id} of {manifest.__tablename__}"
            yield StoreFault(place=place, what="cells it names are gone; restore a backup")


def _leftovers(session: Session) -> Iterator[StoreFault]:
    for table in (VisitTable, PartTable):
        left = select(table.profile_id).join(ProfileTable).where(ProfileTable.state != "open").distinct()
        for number in session.scalars(left):
            yield StoreFault(place=f"profile {number}", what=f"it is closed and has rows in {table.__tablename__}")
    surfaces = select(SurfaceTable).where(SurfaceTable.id.in_(select(MeasurementTable.surface_id)))
    for row in session.scalars(surfaces):
        if not (row.device and row.model and row.dtype):
            yield StoreFault(place=f"row {row.id} of {row.__tablename__}", what="its key is empty; restore a backup")
