"""One store into another, without duplicates and without hiding anything newer than what comes in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ...profiler.records.acceptance import PairwiseAcceptance
from ...profiler.records.measurement import Measurement
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.wire import readable
from ..sources import record_hash
from ..sql.database import Database
from ..sql.documents import IDENTITIES, SETUPS, TABLES, Record, row_of, setup_columns
from ..sql.engines import wait_for_turn
from ..sql.measurements import surface_id_of, texts_along
from ..sql.plans import OutcomeTable, setup_of
from ..sql.provenance import hash_now, keep_sources
from ..sql.tables import (
    Base,
    MeasurementTable,
    ObservationTable,
    PlanTable,
    ProfileTable,
    TraceTable,
    ValidationTable,
    is_temperature,
)
from .arrivals import Arrivals
from .records import Shared, SharedCell, SharedOutcome, SharedPlan, SharedRow, SharedSurface

Mark = tuple[str, str]  # of a cell: its hash and its moment, since a shape that fails twice has the same text twice
IMPORTED = "imported"  # the key of profiles that were finished in another store


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCells:
    """Which cells are here, and when the newest of each batch was stored; profiles by their numbers here."""

    profiles: dict[Mark, int | None]  # of each cell the profile that timed it
    newest: dict[int, dict[int | None, str]]  # batch -> profile -> created

    def profiles_of(self, cells: Sequence[SharedCell], marks: Sequence[Mark]) -> dict[int | None, int]:
        """Return the profiles here that some cells of another store's belong to, by their numbers there."""
        found = ((cell.profile, self.profiles.get(mark)) for cell, mark in zip(cells, marks, strict=True))
        return {there: here for there, here in found if there is not None and here is not None}

    def newest_beside(self, profile: int | None, batch: int) -> str:
        """Return when the newest cell of a batch was stored that this profile did not time; "" where there is none."""
        of_batch = self.newest.get(batch, {}).items()
        return max((created for each, created in of_batch if each is None or each != profile), default="")


def held_cells(session: Session, surface_id: int) -> HeldCells:
    """Return the cells of a surface."""
    columns = (MeasurementTable.batch, MeasurementTable.profile_id, MeasurementTable.created, MeasurementTable.document)
    profiles: dict[Mark, int | None] = {}
    newest: dict[int, dict[int | None, str]] = defaultdict(dict)
    for batch, profile, created, document in session.execute(select(*columns).filter_by(surface_id=surface_id)):
        profiles[hash_now(Measurement, document), created] = profile
        newest[batch][profile] = max(newest[batch].get(profile, ""), created)
    return HeldCells(profiles=profiles, newest=newest)


def mark_of(cell: SharedCell) -> Mark:
    """Return what decides whether a cell is here."""
    return record_hash(cell.measurement), cell.created


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of what came in: counts by kind, and by "measurement", "observation" and "validation"."""

    added: dict[str, int]
    known: dict[str, int]  # was there already
    left_out: tuple[str, ...]  # why something was not taken, or not taken to count


def merge(database: Database, items: Callable[[], Iterable[Shared]]) -> Merged:
    """Take from another store what this one lacks, all of it or nothing, and return what became of it.

    Of a setup the newest row counts, so older ones are left out; host times only where newer ones have all their
    batches and kinds of round. A plan older than the setup's newest comes in retired. Promotions are taken over, in
    order, only for setups that are new here: this store decides which plan counts. `items` yields a plan after its
    sources, maybe repeatedly.

    Raises:
        StoreError: the records or the database are damaged; nothing was changed.
    """

    def work(session: Session) -> Merged:
        wait_for_turn(session, "records")
        merging = _Merging(session)
        for item in items():
            merging.take(item)
        return merging.finish()

    return database._write(work)


class _Merging:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._added: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._left_out: list[str] = []
        self._files: Counter[int] = Counter()  # of each surface, by its number here
        self._profiles: dict[tuple[int, int], int] = {}  # file of its surface, number there -> number here
        self._arrivals = Arrivals()
        self._last = {table: session.scalar(select(func.max(table.id))) or 0 for table in SETUPS}  # that was here

    def finish(self) -> Merged:
        self._left_out += self._arrivals.settle(self._session)
        return Merged(added=dict(self._added), known=dict(self._known), left_out=tuple(self._left_out))

    def take(self, item: Shared) -> None:
        match item:
            case SharedSurface():
                self._take_cells(item)
            case SharedPlan():
                self._take_plan(item)
            case _:
                self._take_record(item, getattr(item, item.kind))
        self._session.flush()

    def _take_record(self, item: SharedRow, record: object) -> None:
        """Take a record unless it is here, or newer ones of its setup that were here say all of it.

        What this merge brought is not newer: it comes in the order of storing, whatever its clocks say.
        """
        row = row_of(record)
        table, names = TABLES[type(record)], setup_columns(row)
        alike = select(table.id, table.document, table.created).filter_by(**names)
        if isinstance(row, TraceTable):
            alike = alike.where(is_temperature(TraceTable.temperature, row.temperature))
        newer: list[tuple[str, str]] = []
        for number, document, created in self._session.execute(alike):
            if item.kind in IDENTITIES or hash_now(type(record), document) == record_hash(record):
                self._known[item.kind] += 1
                return
            if item.created < created and number <= self._last[table]:
                newer.append((created, document))
        if newest := _said_since(record, newer):
            self._leave_out(f"{item.kind} of {_listed(names)}, kept on {item.created}: one of {newest} is here")
            return
        self._add(item.kind, row, item.created)

    def _take_cells(self, item: SharedSurface) -> None:
        """Take the new cells of a surface; of a batch of which newer cells are here, none."""
        surface_id = surface_id_of(self._session, item.surface)
        file = self._files[surface_id]
        self._files[surface_id] += 1
        held, marks = held_cells(self._session, surface_id), [mark_of(cell) for cell in item.cells]
        profiles = held.profiles_of(item.cells, marks)
        late: Counter[int] = Counter()
        for cell, mark in zip(item.cells, marks, strict=True):
            batch, profile_id = cell.measurement.batch, profiles.get(cell.profile)
            if mark in held.profiles:
                self._known["measurement"] += 1
            elif cell.created < held.newest_beside(profile_id, batch):
                late[batch] += 1
            else:
                own = profile_id or self._profile(file, cell.profile)
                row = row_of(cell.measurement, surface_id=surface_id, profile_id=own)
                self._add("measurement", row, cell.created)
        for batch, count in late.items():
            where = _listed(asdict(item.surface))
            newest = held.newest_beside(None, batch)
            self._leave_out(f"{count} cells at batch {batch} of {where}: cells of {newest} are here")

    def _profile(self, file: int, number: int | None) -> int | None:
        """Return the profile of this store for one of the other's.

        Files of one surface may come from stores that number differently, so each of its files has its own profiles.
        """
        if number is None:
            return None
        if (file, number) not in self._profiles:
            row = ProfileTable(key=IMPORTED, state="finished")
            self._session.add(row)
            self._session.flush()
            self._profiles[file, number] = row.id
        return self._profiles[file, number]

    def _take_plan(self, item: SharedPlan) -> None:
        setup = setup_of(PlanTable.device == item.device, item.target, item.workload, item.temperature)
        wait_for_turn(self._session, "plans", item.device, item.target, item.workload)
        same = select(PlanTable.id).where(*setup, PlanTable.content_hash == item.content_hash)
        if known := self._session.scalar(same.order_by(PlanTable.id).limit(1)):
            self._known["plan"] += 1
            self._take_outcomes(item, known)
            self._arrivals.add_events(known, item.events)
            return
        newest, version = self._session.execute(
            select(func.max(PlanTable.created), func.max(PlanTable.version)).where(*setup)
        ).one()
        names = {name: getattr(item, name) for name in ("device", "device_kind", "target", "workload", "temperature")}
        row = PlanTable(**names, document=item.document, version=1 + (version or 0))
        self._add("plan", row, item.created)
        self._session.flush()
        keep_sources(self._session, row, item.sources)
        self._take_outcomes(item, row.id)
        self._arrivals.add_plan(row.id, item, newest)

    def _take_outcomes(self, item: SharedPlan, plan_id: int) -> None:
        """Take the new outcomes of a plan; of equal texts as many as there are there."""
        tables: tuple[tuple[str, OutcomeTable, Sequence[SharedOutcome]], ...] = (
            ("observation", ObservationTable, item.observations),
            ("validation", ValidationTable, item.validations),
        )
        for kind, table, outcomes in tables:
            here = Counter(self._session.scalars(select(table.document).filter_by(plan_id=plan_id)))
            for outcome in outcomes:
                if here[outcome.document]:
                    here[outcome.document] -= 1
                    self._known[kind] += 1
                else:
                    self._add(kind, table(plan_id=plan_id, document=outcome.document), outcome.created)

    def _add(self, kind: str, row: Base, created: str) -> None:
        row.created = created
        self._session.add(row)
        self._added[kind] += 1

    def _leave_out(self, why: str) -> None:
        self._left_out.append(why)


def _said_since(record: object, newer: Sequence[tuple[str, str]]) -> str:
    """Return the time of the last of some newer rows, "" where together they lack something of a record.

    Host times are compared by batch and kind of round in one regime, an agreement by its texts.
    """
    if isinstance(record, RoundOverhead):
        times = [(created, each) for created, each in _read(RoundOverhead, newer) if each.regime == record.regime]
        said = {sample.like for _, each in times for sample in each.samples}
        is_said = {sample.like for sample in record.samples} <= said
        return max(created for created, _ in times) if is_said else ""
    if isinstance(record, PairwiseAcceptance):
        agreements = _read(PairwiseAcceptance, newer)
        return max((created for created, each in agreements if texts_along(each) == texts_along(record)), default="")
    return max((created for created, _ in newer), default="")


def _read(kind: type[Record], rows: Sequence[tuple[str, str]]) -> list[tuple[str, Record]]:
    return [(created, record) for created, document in rows for record in readable(kind, [document])]


def _listed(names: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in names.items() if value)
