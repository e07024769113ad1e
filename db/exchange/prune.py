"""Taking out of a store what nothing needs: replaced records and abandoned profiles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, union_all, update
from sqlalchemy.orm import Session

from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.wire import from_json, readable
from ..rows import key_of
from ..sources import SurfaceManifest
from ..sql.database import KEYS_LAST_S, Database
from ..sql.documents import SUPERSEDED, Record
from ..sql.engines import wait_for_turn
from ..sql.measurements import counting_cells, last_profiled_cells, texts_along
from ..sql.plans import counted, setup_of
from ..sql.profiles import close_profile
from ..sql.provenance import PRUNING, is_whole
from ..sql.tables import (
    DoorTable,
    ManifestTable,
    MeasurementTable,
    ObservationTable,
    OverheadTable,
    PairwiseTable,
    PartTable,
    PlanEventTable,
    PlanSourceTable,
    PlanTable,
    ProfileTable,
    SurfaceTable,
    TraceTable,
    VisitTable,
    WriteTable,
    utc_ago,
)

PROFILES_LAST_S = 90 * 86_400.0  # that nobody goes on with
ROWS_AT_ONCE = 500  # SQLite takes so many numbers in one statement, whatever its version
TRACE_SETUP = (*SUPERSEDED["trace"].setup, "temperature")
SETUPS = {name: kind.setup for name, kind in SUPERSEDED.items()} | {"trace": TRACE_SETUP}
TABLES: dict[str, Any] = {name: kind.table for name, kind in SUPERSEDED.items()}  # Any: SQLAlchemy's classes

Numbers = dict[str, list[int]]  # by kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Rows of one kind, and of one setup, that are taken out."""

    kind: str  # "measurement", "overhead", "trace", "pairwise", "observation" or "profile"
    of: str  # the surface, setup, plan or key
    rows: int


def prune(database: Database, *, dry_run: bool = False, observations: int | None = None) -> list[Pruned]:
    """Delete what nothing needs, in one transaction, and return what that is; an SQLite file gets smaller.

    What stays: the cells of each surface, the newest host times of each setup and regime, the newest trace and
    agreement of each setup, all sources of plans that count or are promoted, all plans and validations, and unreadable
    records. Other plans' lost sources are marked as no longer held. Profiles idle for `PROFILES_LAST_S` are abandoned.
    `observations` newest ones stay of each plan; None keeps all.
    """
    if dry_run:
        return database._read(lambda session: _listed(session, _superfluous(session, observations)))

    def work(session: Session) -> list[Pruned]:
        wait_for_turn(session, PRUNING)
        found = _superfluous(session, observations)
        report = _listed(session, found)
        if report:
            _take_out(session, found)
        session.execute(delete(WriteTable).where(WriteTable.created < utc_ago(KEYS_LAST_S)))
        return report

    report = database._write(work)
    if report:
        database.give_back_space()
    return report


def _superfluous(session: Session, observations: int | None) -> Numbers:
    cells = session.scalars(select(MeasurementTable.id)).all()  # first: what is added meanwhile is no candidate
    plans = _plans_that_matter(session)
    needed = {*session.scalars(counting_cells()), *session.scalars(last_profiled_cells()), *_named(session, plans)}
    found = {"measurement": [each for each in cells if each not in needed]}
    for kind, table in TABLES.items():
        newest = select(func.max(table.id)).group_by(*(getattr(table, name) for name in SETUPS[kind]))
        hashes = select(PlanSourceTable.content_hash).where(
            PlanSourceTable.kind == kind, PlanSourceTable.plan_id.in_(plans)
        )
        old = select(table.id).where(table.id.not_in(newest), table.content_hash.not_in(hashes))
        found[kind] = list(session.scalars(old))
    counting = {
        "overhead": _newest_times(session),
        "trace": _newest_traces(session, found["trace"]),
        "pairwise": _newest_agreements(session),
    }
    for kind, numbers in counting.items():
        found[kind] = [each for each in found[kind] if each not in numbers]
    found["observation"] = [] if observations is None else _older_observations(session, observations)
    found["profile"] = _forgotten_profiles(session)
    return found


def _older_observations(session: Session, kept: int) -> list[int]:
    place = func.row_number().over(partition_by=ObservationTable.plan_id, order_by=ObservationTable.id.desc())
    numbered = select(ObservationTable.id, place.label("place")).subquery()
    return list(session.scalars(select(numbered.c.id).where(numbered.c.place > kept)))


def _forgotten_profiles(session: Session) -> list[int]:
    long_ago = utc_ago(PROFILES_LAST_S)
    lively = (select(table.profile_id).where(table.created > long_ago) for table in (VisitTable, PartTable))
    idle = select(ProfileTable.id).where(ProfileTable.state == "open", ProfileTable.created < long_ago)
    return list(session.scalars(idle.where(ProfileTable.id.not_in(union_all(*lively)))))


def _newest_traces(session: Session, old: Collection[int]) -> set[int]:
    """Return the newest trace that can be read, and all that cannot, of every setup that has one of the old traces."""
    of_setup: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    columns = (getattr(TraceTable, name) for name in TRACE_SETUP)
    for number, *names in session.execute(select(TraceTable.id, *columns).order_by(TraceTable.id)):
        of_setup[tuple(names)].append(number)
    newest: dict[tuple[object, ...], int] = {}
    for setup, numbers in of_setup.items():
        for number in () if set(numbers).isdisjoint(old) else numbers:  # the others are large and need no reading
            text = session.scalars(select(TraceTable.document).where(TraceTable.id == number)).one()
            newest[(number,) if _read(AcceptanceTrace, text) is None else setup] = number
    return set(newest.values())


def _newest_agreements(session: Session) -> set[int]:
    newest: dict[tuple[object, ...], int] = {}
    for row in session.scalars(select(PairwiseTable).order_by(PairwiseTable.id)):
        agreement = _read(PairwiseAcceptance, row.document)
        newest[(row.id,) if agreement is None else (row.names_hash, *texts_along(agreement))] = row.id
    return set(newest.values())


def _newest_times(session: Session) -> set[int]:
    newest: dict[tuple[object, ...], int] = {}
    for row in session.scalars(select(OverheadTable).order_by(OverheadTable.created, OverheadTable.id)):
        times = _read(RoundOverhead, row.document)
        if times is None:
            newest[(row.id,)] = row.id
            continue
        for sample in times.samples:
            newest[row.device, row.target, row.dtype, times.regime, *sample.like] = row.id
    return set(newest.values())


def _read(kind: type[Record], document: str) -> Record | None:
    """Return a record, None where it cannot be read: a newer version of spectune may need it."""
    return next(iter(readable(kind, [document])), None)


def _plans_that_matter(session: Session) -> list[int]:
    """Return the plans that count for their setups, and those that would when these are retired: promoted ones."""
    setups = select(PlanTable.device, PlanTable.target, PlanTable.workload, PlanTable.temperature).distinct()
    first = (
        row.id
        for device, target, workload, temperature in session.execute(setups).all()
        for row in counted(session, setup_of(PlanTable.device == device, target, workload, temperature))
    )
    last = select(func.max(PlanEventTable.id)).group_by(PlanEventTable.plan_id)
    promoted = select(PlanEventTable.plan_id).where(PlanEventTable.id.in_(last), PlanEventTable.action == "promoted")
    return sorted({*first, *session.scalars(promoted)})


def _named(session: Session, plans: Sequence[int]) -> Iterable[int]:
    hashes = select(PlanSourceTable.content_hash).where(
        PlanSourceTable.kind == "surface", PlanSourceTable.plan_id.in_(plans)
    )
    for document in session.scalars(select(ManifestTable.document).where(ManifestTable.content_hash.in_(hashes))):
        manifest = from_json(SurfaceManifest, document)
        cells = select(MeasurementTable.id, MeasurementTable.content_hash).join(SurfaceTable)
        wanted = set(manifest.measurements)
        yield from (number for number, seen in session.execute(cells.filter_by(**key_of(manifest))) if seen in wanted)


def _listed(session: Session, found: Numbers) -> list[Pruned]:
    about: Counter[tuple[str, str]] = Counter()
    names = (SurfaceTable.device, SurfaceTable.model, SurfaceTable.role, SurfaceTable.regime, SurfaceTable.dtype)
    for part in _parts(found["measurement"]):
        rows = select(func.count(MeasurementTable.id), *names).join(SurfaceTable).where(MeasurementTable.id.in_(part))
        for count, *key in session.execute(rows.group_by(*names)):
            about["measurement", " ".join(key)] += count
    for kind, table in TABLES.items():
        for part in _parts(found[kind]):
            columns = select(*(getattr(table, name) for name in SETUPS[kind])).where(table.id.in_(part))
            for values in session.execute(columns):
                about[kind, " ".join(map(str, values))] += 1
    for kind, column, word in (("observation", ObservationTable.plan_id, "plan "), ("profile", ProfileTable.key, "")):
        for part in _parts(found[kind]):
            counts = select(column, func.count()).where(column.class_.id.in_(part)).group_by(column)
            for value, count in session.execute(counts):
                about[kind, f"{word}{value}"] += count
    return [Pruned(kind=kind, of=of, rows=rows) for (kind, of), rows in sorted(about.items())]


def _take_out(session: Session, found: Numbers) -> None:
    session.add(DoorTable())
    session.flush()
    for kind, table in (TABLES | {"measurement": MeasurementTable, "observation": ObservationTable}).items():
        for part in _parts(found[kind]):
            session.execute(delete(table).where(table.id.in_(part)))
    for profile_id in found["profile"]:
        close_profile(session, profile_id, "abandoned")
    _mark_sources(session)
    session.execute(delete(DoorTable))


def _mark_sources(session: Session) -> None:
    held = select(PlanSourceTable.content_hash).where(PlanSourceTable.is_held)
    lost: list[str] = []
    for kind, table in TABLES.items():
        there = select(table.content_hash)
        gone = held.where(PlanSourceTable.kind == kind, PlanSourceTable.content_hash.not_in(there))
        lost += session.scalars(gone.distinct())
    surfaces = select(ManifestTable).where(ManifestTable.content_hash.in_(held))
    for manifest in session.scalars(surfaces).all():
        lost += [] if is_whole(session, manifest.document) else [manifest.content_hash]
    for seen in lost:
        session.execute(update(PlanSourceTable).where(PlanSourceTable.content_hash == seen).values(is_held=False))


def _parts(numbers: Sequence[int]) -> Iterable[Sequence[int]]:
    return (numbers[start : start + ROWS_AT_ONCE] for start in range(0, len(numbers), ROWS_AT_ONCE))
