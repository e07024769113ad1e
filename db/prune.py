"""Taking out of a store what nothing needs any more: superseded timings and recordings that no plan rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from ..profiler.records.acceptance import PairwiseAcceptance
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.wire import from_json
from .database import KEYS_LAST_S, Database
from .locks import wait_for_turn
from .measurements import counting_cells, last_profiled_cells
from .provenance import PRUNING
from .shelf import counted, setup_of
from .sources import manifest_of
from .tables import (
    Base,
    DoorTable,
    ManifestTable,
    MeasurementTable,
    OverheadTable,
    PairwiseTable,
    PlanEventTable,
    PlanSourceTable,
    PlanTable,
    SurfaceTable,
    TraceTable,
    WriteTable,
    utc_ago,
)
from .traces import texts_along

RecordTable = type[OverheadTable] | type[TraceTable] | type[PairwiseTable]

ROWS_AT_ONCE = 500  # SQLite takes so many numbers in one statement, whatever its version
SUPERSEDED: dict[str, tuple[RecordTable, tuple[str, ...]]] = {  # what is kept by its setup -> the columns of the setup
    "overhead": (OverheadTable, ("device", "target", "dtype")),
    "trace": (TraceTable, ("target", "drafter", "workload", "temperature")),
    "pairwise": (PairwiseTable, ("names_hash",)),
}

Numbers = dict[str, list[int]]  # by kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Rows of one kind, and of one setup, that are taken out."""

    kind: str  # "measurement", "overhead", "trace" or "pairwise"
    of: str  # the surface or setup
    rows: int


def prune(database: Database, *, dry_run: bool = False) -> list[Pruned]:
    """Take out what nothing needs, in one transaction, and return what that is.

    Kept are the cells that make each surface, the newest host times of each setup and regime, the newest trace and
    agreement of each setup, and every source of a plan that counts or is promoted. Plans, and what became of them, are
    never taken out. Sources of other plans that go are marked as no longer held.

    Args:
        database: whose rows.
        dry_run: only say what would be taken out.
    """
    if dry_run:
        return database._read(lambda session: _listed(session, _superfluous(session)))

    def work(session: Session) -> list[Pruned]:
        wait_for_turn(session, PRUNING)
        found = _superfluous(session)
        report = _listed(session, found)
        if report:
            _take_out(session, found)
        session.execute(delete(WriteTable).where(WriteTable.created < utc_ago(KEYS_LAST_S)))
        return report

    return database._write(work)


def _superfluous(session: Session) -> Numbers:
    """Return the numbers of rows that nothing needs."""
    cells = session.scalars(select(MeasurementTable.id)).all()  # first: what is added meanwhile is no candidate
    plans = _plans_that_matter(session)
    needed = {*session.scalars(counting_cells()), *session.scalars(last_profiled_cells()), *_named(session, plans)}
    found = {"measurement": [each for each in cells if each not in needed]}
    for kind, (table, setup) in SUPERSEDED.items():
        newest = select(func.max(table.id)).group_by(*(getattr(table, name) for name in setup))
        hashes = select(PlanSourceTable.content_hash).where(
            PlanSourceTable.kind == kind, PlanSourceTable.plan_id.in_(plans)
        )
        old = select(table.id).where(table.id.not_in(newest), table.content_hash.not_in(hashes))
        found[kind] = list(session.scalars(old))
    for kind, counting in (("overhead", _newest_times(session)), ("pairwise", _newest_agreements(session))):
        found[kind] = [each for each in found[kind] if each not in counting]
    return found


def _newest_agreements(session: Session) -> set[int]:
    """Return how models of the same names agree: the newest of every target, workload and temperature."""
    newest = {}
    for row in session.scalars(select(PairwiseTable).order_by(PairwiseTable.id)):
        newest[row.names_hash, *texts_along(from_json(PairwiseAcceptance, row.document))] = row.id
    return set(newest.values())


def _newest_times(session: Session) -> set[int]:
    """Return what a setup goes by in each regime: the newest host times of every batch size and kind of policy."""
    newest = {}
    for row in session.scalars(select(OverheadTable).order_by(OverheadTable.created, OverheadTable.id)):
        times = from_json(RoundOverhead, row.document)
        for sample in times.samples:
            newest[row.device, row.target, row.dtype, times.regime, *sample.like] = row.id
    return set(newest.values())


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
    """Yield the cells of the surfaces that plans rest on."""
    hashes = select(PlanSourceTable.content_hash).where(
        PlanSourceTable.kind == "surface", PlanSourceTable.plan_id.in_(plans)
    )
    for document in session.scalars(select(ManifestTable.document).where(ManifestTable.content_hash.in_(hashes))):
        manifest = manifest_of(document)
        cells = select(MeasurementTable.id, MeasurementTable.content_hash).join(SurfaceTable)
        wanted = set(manifest.measurements)
        yield from (number for number, seen in session.execute(cells.filter_by(**manifest.key)) if seen in wanted)


def _listed(session: Session, found: Numbers) -> list[Pruned]:
    """Say what rows are about, in as few lines as there are surfaces and setups."""
    about: Counter[tuple[str, str]] = Counter()
    names = (SurfaceTable.device, SurfaceTable.model, SurfaceTable.role, SurfaceTable.regime, SurfaceTable.dtype)
    for part in _parts(found["measurement"]):
        rows = select(func.count(MeasurementTable.id), *names).join(SurfaceTable).where(MeasurementTable.id.in_(part))
        for count, *key in session.execute(rows.group_by(*names)):
            about["measurement", " ".join(key)] += count
    for kind, (table, setup) in SUPERSEDED.items():
        for part in _parts(found[kind]):
            columns = select(*(getattr(table, name) for name in setup)).where(table.id.in_(part))
            for values in session.execute(columns):
                about[kind, " ".join(map(str, values))] += 1
    return [Pruned(kind=kind, of=of, rows=rows) for (kind, of), rows in sorted(about.items())]


def _take_out(session: Session, found: Numbers) -> None:
    session.add(DoorTable())
    session.flush()
    tables: dict[str, type[Base]] = {kind: table for kind, (table, _) in SUPERSEDED.items()}
    for kind, table in (tables | {"measurement": MeasurementTable}).items():
        for part in _parts(found[kind]):
            session.execute(delete(table).where(table.id.in_(part)))
    _mark_sources(session)
    session.execute(delete(DoorTable))


def _mark_sources(session: Session) -> None:
    """Say of every source that lost something that the store no longer holds it."""
    held = select(PlanSourceTable.content_hash).where(PlanSourceTable.is_held)
    lost: list[str] = []
    for kind, (table, _) in SUPERSEDED.items():
        there = select(table.content_hash)
        gone = held.where(PlanSourceTable.kind == kind, PlanSourceTable.content_hash.not_in(there))
        lost += session.scalars(gone.distinct())
    surfaces = select(ManifestTable).where(ManifestTable.content_hash.in_(held))
    for manifest in session.scalars(surfaces).all():
        lost += [] if is_whole(session, manifest.document) else [manifest.content_hash]
    for seen in lost:
        session.execute(update(PlanSourceTable).where(PlanSourceTable.content_hash == seen).values(is_held=False))


def is_whole(session: Session, document: str) -> bool:
    """Say whether every cell that a manifest names is there."""
    manifest = manifest_of(document)
    cells = select(MeasurementTable.content_hash).join(SurfaceTable).filter_by(**manifest.key)
    return set(manifest.measurements) <= set(session.scalars(cells))


def _parts(numbers: Sequence[int]) -> Iterable[Sequence[int]]:
    return (numbers[start : start + ROWS_AT_ONCE] for start in range(0, len(numbers), ROWS_AT_ONCE))
