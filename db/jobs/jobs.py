"""Jobs: who works on what, how far it is, and that each is done by exactly one worker.

A worker leases the oldest waiting job in one transaction, sends heartbeats, and stores its result with the job's end. A
silent job goes to whoever leases it next; the old worker's writes are then refused: none is stored twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Select, delete, func, or_, select
from sqlalchemy.orm import Session

from ...errors import StoreError
from ..sql.database import Database
from ..sql.documents import seen_as
from ..sql.service_tables import JobTable
from ..sql.tables import utc_ago, utc_now

STALE_S = 60.0  # without a heartbeat
MOST_ATTEMPTS = 3
KEPT_DAYS = 45  # of a job that has ended, since it was asked for
LONGEST_NOTE = 500
ENDED = ("done", "failed", "cancelled")
LOOKED_AT = 65_536  # characters of a request that are read unless a worker takes it: 16 MiB of tables may stand behind


class NoJobError(StoreError):
    """There is no job of this key."""


class JobEndedError(StoreError):
    """A job has ended, so that it cannot be changed any more."""


class LostJobError(StoreError):
    """A worker no longer holds its job: it was cancelled, or taken up by another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTold:
    """How far a job is; times are UTC, ISO 8601."""

    id: int
    key: str
    kind: str
    state: str
    progress: float  # 0 to 1
    note: str  # what is being done
    plan_id: int | None  # of the plan it made
    error: str | None
    attempts: int
    created: str
    heartbeat: str | None
    token_name: str  # whose token started it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow(JobTold):
    """What a store says about one job."""

    request: str  # JSON; of a job that is only looked at, its beginning
    worker: str | None


class Jobs:
    """The jobs of one store."""

    def __init__(self, database: Database, stale_s: float = STALE_S, most_attempts: int = MOST_ATTEMPTS) -> None:
        """Take the database; a job without a heartbeat for `stale_s` is free, after `most_attempts` it has failed."""
        self._database, self._stale_s, self._most_attempts = database, stale_s, most_attempts

    def add(self, kind: str, request: str, token_name: str) -> JobRow:
        """Keep a job that waits for a worker, and return it."""
        row = JobTable(key=secrets.token_hex(16), kind=kind, state="waiting", request=request, token_name=token_name)
        row.progress, row.note, row.attempts = 0.0, "waiting for a worker", 0
        with self._database._writing() as session:
            session.add(row)
            session.flush()
            return seen_as(JobRow, row)

    def find(self, key: str) -> JobRow:
        """Return one job, or raise NoJobError."""
        rows = self._database._rows(JobRow, _looked_at().where(JobTable.key == key))
        if not rows:
            raise _no_job(key)
        return rows[0]

    def rows(self, *, limit: int, after: int | None = None, state: str | None = None) -> list[JobRow]:
        """Return at most `limit` jobs, oldest first: only those in a state, and with an id above `after`."""
        found = _looked_at().where(JobTable.id > (after or 0)).order_by(JobTable.id).limit(limit)
        return self._database._rows(JobRow, found if state is None else found.where(JobTable.state == state))

    def newest(self, limit: int) -> list[JobRow]:
        """Return the newest jobs, at most so many, newest first."""
        return self._database._rows(JobRow, _looked_at().order_by(JobTable.id.desc()).limit(limit))

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        found = select(JobTable.state, func.count(JobTable.id)).group_by(JobTable.state)
        return self._database._read(lambda session: {row[0]: row[1] for row in session.execute(found)})

    def cancel(self, key: str) -> JobRow:
        """End a job, whose worker stops at its next heartbeat; NoJobError, JobEndedError where it ended otherwise."""
        with self._database._writing() as session:
            row = _existing(session, key)
            if row.state in ("done", "failed"):
                raise JobEndedError(f"job {key} is {row.state} and can no longer be cancelled")
            row.state, row.note, row.worker = "cancelled", "cancelled", None
            session.flush()
            return seen_as(JobRow, row)

    def lease(self, worker: str) -> JobRow | None:
        """Take and return the oldest waiting or abandoned job, None without one; one begun too often fails here."""
        while True:
            with self._database._writing() as session:
                row: JobTable | None = session.scalar(self._free())
                if row is None:
                    return None
                if row.attempts < self._most_attempts:
                    row.state, row.worker, row.heartbeat = "running", worker, utc_now()
                    row.attempts += 1
                    row.note = f"begun for the {_ordinal(row.attempts)} time" if row.attempts > 1 else "begun"
                    session.flush()
                    return seen_as(JobRow, row)
                _fail(row, f"given up after {row.attempts} attempts; the last one ended while it did: {row.note}")

    def tell(self, key: str, worker: str, note: str | None = None, progress: float | None = None) -> None:
        """Note a worker's heartbeat and progress; raise LostJobError, at which it must stop, where it lost the job."""
        with self._database._writing() as session:
            row = _held(session, key, worker)
            row.heartbeat = utc_now()
            row.note = row.note if note is None else note[:LONGEST_NOTE]
            row.progress = row.progress if progress is None else min(max(progress, row.progress), 1.0)

    @contextmanager
    def finishing(self, key: str, worker: str) -> Iterator[JobDone]:
        """Open the transaction that ends a job; raise LostJobError, and store nothing, where the worker lost it."""
        with self._database.transaction() as session:
            row = _held(session, key, worker)
            done = JobDone()
            yield done
            row.state, row.progress, row.note, row.worker = "done", 1.0, "done", None
            row.plan_id = done.plan_id

    def fail(self, key: str, worker: str, error: str, *, is_final: bool) -> None:
        """End a worker's hold, if any, on a failed job; it waits again unless `is_final` or out of attempts."""
        with self._database._writing() as session:
            row = session.scalar(select(JobTable).filter_by(key=key, worker=worker, state="running").with_for_update())
            if row is None:
                return
            if is_final or row.attempts >= self._most_attempts:
                tried = f" (after {row.attempts} attempts)" if not is_final else ""
                _fail(row, f"{error}{tried}")
            else:
                _wait(row, f"failed, will be tried again: {error}")

    def release(self, worker: str, why: str, *, counts: bool) -> int:
        """Release every job of an ended worker and return how many; `counts` is False for a wanted stop."""
        with self._database._writing() as session:
            rows = session.scalars(select(JobTable).filter_by(worker=worker, state="running").with_for_update()).all()
            for row in rows:
                row.attempts -= 0 if counts else 1
                if row.attempts >= self._most_attempts:
                    _fail(row, f"given up after {row.attempts} attempts: {why}, while it did: {row.note}")
                else:
                    _wait(row, f"waiting again: {why}")
            return len(rows)

    def drop_ended(self, days: float = KEPT_DAYS) -> int:
        """Drop ended jobs that were requested more than so many days ago, and return how many; their plans stay."""
        is_over = JobTable.state.in_(ENDED) & (JobTable.created < utc_ago(days * 86_400))
        with self._database._writing() as session:
            return session.connection().execute(delete(JobTable).where(is_over)).rowcount

    def _free(self) -> Select[Any]:  # Any: SQLAlchemy 2.0 and 2.1 spell the row differently
        is_stale = or_(JobTable.heartbeat.is_(None), JobTable.heartbeat < utc_ago(self._stale_s))
        is_left = (JobTable.state == "running") & is_stale
        found = select(JobTable).where(or_(JobTable.state == "waiting", is_left)).order_by(JobTable.id).limit(1)
        return found.with_for_update(skip_locked=True)


@dataclass(slots=True)
class JobDone:
    """What a finished job made."""

    plan_id: int | None = None


def _looked_at() -> Select[Any]:
    begun = func.substr(JobTable.request, 1, LOOKED_AT).label("request")
    return select(*(begun if each.name == "request" else getattr(JobTable, each.name) for each in fields(JobRow)))


def _existing(session: Session, key: str) -> JobTable:
    row = session.scalar(select(JobTable).filter_by(key=key).with_for_update())
    if row is None:
        raise _no_job(key)
    return row


def _no_job(key: str) -> NoJobError:
    return NoJobError(f"there is no job {key[:64]!r}; list them with GET /v1/jobs")


def _held(session: Session, key: str, worker: str) -> JobTable:
    row = session.scalar(select(JobTable).filter_by(key=key, worker=worker, state="running").with_for_update())
    if row is None:
        raise LostJobError(f"job {key} was cancelled or taken up by another worker; stop working on it")
    return row


def _fail(row: JobTable, error: str) -> None:
    row.state, row.worker, row.note, row.error = "failed", None, "failed", error


def _wait(row: JobTable, note: str) -> None:
    row.state, row.worker, row.note = "waiting", None, note[:LONGEST_NOTE]


def _ordinal(count: int) -> str:
    return {2: "second", 3: "third"}.get(count, f"{count}th")
