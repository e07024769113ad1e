"""Profiles under way: what a killed one leaves behind, so that the same command continues where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ...errors import MeasurementError, StoreError
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.surface import LatencySurface
from ...profiler.records.visit import Visit
from ...profiler.records.wire import to_json
from .database import Database
from .documents import keep_newest
from .engines import wait_for_turn
from .measurements import keep_cells
from .tables import Base, PartTable, ProfileTable, VisitTable

SURFACES = "surfaces"  # the part that holds the finished surfaces
STATE = select(ProfileTable.state).where(ProfileTable.id == bindparam("profile_id")).with_for_update(read=True)
ADD_VISIT = insert(Base.metadata.tables[VisitTable.__tablename__])  # of the table, not the class: half the time


class NoProfileError(StoreError):
    """There is no profile of this number."""


class ProfileJournal:
    """What one open profile has done so far; a `profiler.protocols.Journal`.

    Every write is one short transaction, without a lock between calls; it outlives a killed process once the call
    returns. After `finish`, or once another process has abandoned the profile, every write is refused, as is an
    ordinal or a name that is taken: StoreError, which names a damaged row, too.
    """

    def __init__(self, database: Database, profile_id: int, *, is_resumed: bool) -> None:
        """Describe an open profile, found by `Profiles.open_profile`."""
        self.profile_id, self.is_resumed = profile_id, is_resumed
        self._name = f"profile {profile_id} in {database.url}"
        self._read, self._write = database._read, database._write_in_turn

    def visits(self) -> list[Visit]:
        columns = [getattr(VisitTable, field.name) for field in fields(Visit)]
        found = select(*columns).where(VisitTable.profile_id == self.profile_id).order_by(VisitTable.ordinal)
        rows = self._read(lambda session: session.execute(found).mappings().all())
        try:
            return [Visit(**row) for row in rows]
        except MeasurementError as error:
            raise StoreError(f"a visit of {self._name} was damaged: {error}; start over with --fresh") from error

    def add_visit(self, visit: Visit) -> None:
        row = {"profile_id": self.profile_id, **asdict(visit)}

        def work(session: Session) -> None:
            self._require_open(session)
            try:
                session.connection().execute(ADD_VISIT, row)
            except IntegrityError as error:
                raise self._taken(f"visit {visit.ordinal}") from error

        self._write(work)

    def part(self, name: str) -> str | None:
        found = select(PartTable.document).where(PartTable.profile_id == self.profile_id, PartTable.name == name)
        return self._read(lambda session: session.scalar(found))

    def add_part(self, name: str, document: str) -> None:

        def work(session: Session) -> None:
            self._require_open(session)
            self._keep_part(session, name, document)

        self._write(work)

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        document = to_json(tuple(surfaces), tuple[LatencySurface, ...])

        def work(session: Session) -> None:
            self._require_open(session)
            for surface in surfaces:
                keep_cells(session, surface, surface.measurements, self.profile_id)
            _drop(session, VisitTable, self.profile_id)
            self._keep_part(session, SURFACES, document)

        self._write(work)

    def finish(
        self,
        *,
        overhead: RoundOverhead | None = None,
        traces: Sequence[AcceptanceTrace] = (),
        pairwise: Sequence[PairwiseAcceptance] = (),
    ) -> None:
        def work(session: Session) -> None:
            self._require_open(session)
            for record in (*traces, *([overhead] if overhead is not None else []), *pairwise):
                keep_newest(session, record)
            close_profile(session, self.profile_id, "finished")

        self._write(work)

    def _require_open(self, session: Session) -> None:
        state = session.connection().scalar(STATE, {"profile_id": self.profile_id})
        if state != "open":
            raise StoreError(f"{self._name} is {state or 'gone'} and takes nothing more; start the command again")

    def _keep_part(self, session: Session, name: str, document: str) -> None:
        try:
            session.execute(insert(PartTable).values(profile_id=self.profile_id, name=name, document=document))
        except IntegrityError as error:
            raise self._taken(f"part {name!r}") from error

    def _taken(self, what: str) -> StoreError:
        return StoreError(
            f"{what} of {self._name} is already there: another process runs the same profile; "
            "wait for it to end or stop it, then start the command again"
        )


class Profiles(Database):
    """Profiles by key; one that was not finished is found again."""

    def open_profile(self, key: str, fresh: bool = False) -> ProfileJournal:
        found = select(ProfileTable.id).where(ProfileTable.key == key, ProfileTable.state == "open")

        def work(session: Session) -> tuple[int, bool]:
            wait_for_turn(session, "profile", key)
            left = list(session.scalars(found.order_by(ProfileTable.id)))
            if fresh:
                for profile_id in left:
                    close_profile(session, profile_id, "abandoned")
            is_resumed = bool(left) and not fresh
            return (left[-1] if is_resumed else _begin(session, key)), is_resumed

        profile_id, is_resumed = self._write(work)
        return self.journal(profile_id, is_resumed=is_resumed)

    def journal(self, profile_id: int, *, is_resumed: bool = True) -> ProfileJournal:
        """Return the journal of a profile that `open_profile` named; a closed one refuses every write."""
        return ProfileJournal(self, profile_id, is_resumed=is_resumed)


def _begin(session: Session, key: str) -> int:
    row = ProfileTable(key=key, state="open")
    session.add(row)
    session.flush()
    return row.id


def close_profile(session: Session, profile_id: int, state: str) -> None:
    """Drop what an open profile holds and say what became of it, as part of a transaction."""
    session.execute(update(ProfileTable).where(ProfileTable.id == profile_id).values(state=state))
    for table in (VisitTable, PartTable):
        _drop(session, table, profile_id)


def _drop(session: Session, table: type[VisitTable] | type[PartTable], profile_id: int) -> None:
    session.execute(delete(table).where(table.profile_id == profile_id))


def profile_begun(database: Database, profile_id: int) -> str:
    """Return a profile's begin (UTC, ISO 8601), unique with its number; raise NoProfileError where there is none."""
    found = select(ProfileTable.created).where(ProfileTable.id == profile_id)
    with database._reading() as session:
        begun = session.scalar(found)
    if begun is None:
        raise NoProfileError(f"there is no profile {profile_id} in {database.url}; open one with POST /v1/profiles")
    return begun
