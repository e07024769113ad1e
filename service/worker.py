"""A process that plans: leases one job after the other and tells how far it is.

A process that left a job at once ends and is replaced: it may have been in the middle of an import. All end with the
service, whose pipe closes then, whatever ended it.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import fields
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from ..db.jobs.jobs import JobRow, Jobs, LostJobError
from ..db.sql.sql_store import SqlStore
from ..db.url import resolve_url
from ..errors import SpectuneError, StoreAwayError, StoreError
from ..profiler.records.wire import from_json

if TYPE_CHECKING:
    from ..tuning.request import PlanRequest

IDLE_S = 0.5  # between looks for a job
BEAT_S = 1.0  # between heartbeats, each with the progress


class _Stop(BaseException):
    """The job is to be left at once."""


def work_for(address: str, name: str, politeness: int, pipe: Connection) -> None:
    """Do the jobs of a store until the service has ended.

    The database's address has its password: it came through a pipe and goes nowhere. `politeness`, 0 to 19, lets the
    service answer before its workers plan.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's business
    os.nice(politeness)
    worker = Worker(name)
    signal.signal(signal.SIGTERM, worker.on_signal)
    threading.Thread(target=worker.watch, args=(pipe,), daemon=True).start()
    with suppress(_Stop), SqlStore(resolve_url(address)) as store:
        worker.run(store)


class Worker:
    """One process; what its signal handler may do depends on what it is at."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_ending = threading.Event()
        self._is_busy = False
        self._has_lost = False
        self._is_leaving = False  # a stop was raised and not yet met
        self._note, self._share = "begun", 0.0

    def watch(self, pipe: Connection) -> None:
        """End this process when the service is gone."""
        with suppress(EOFError, OSError):
            pipe.recv()
        self._is_ending.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Leave the job at once where it is lost or the service is gone or ends us."""
        if not self._has_lost:
            self._is_ending.set()
        if self._is_busy:
            self._is_busy, self._is_leaving = False, True
            raise _Stop  # Python swallows it inside a weak reference's callback: `_beat` looks whether it was met

    def run(self, store: SqlStore) -> None:
        """Do one job after the other."""
        jobs = Jobs(store)
        while not self._is_ending.is_set():
            try:
                job = jobs.lease(self._name)
            except StoreError:  # the database is away; it will be back
                job = None
            if job is None:
                self._is_ending.wait(IDLE_S)
            else:
                self.do(job, jobs, store)

    def do(self, job: JobRow, jobs: Jobs, store: SqlStore) -> None:
        """Do a job, or say why not; one that was left on purpose has no fault."""
        self._note, self._share = "reading the measurements", 0.0
        self._has_lost = self._is_leaving = False
        done = threading.Event()
        beat = threading.Thread(target=self._beat, args=(job, jobs, done), daemon=True)
        beat.start()
        self._is_busy = True
        try:
            self._plan(job, jobs, store)
        except _Stop:
            self._is_leaving = False
            self._is_ending.set()
            with suppress(StoreError):  # else its service does, or it is taken up when its heartbeat is old
                jobs.release(self._name, "its worker was ended", counts=False)
        except LostJobError:  # told at the very end: nothing was kept
            return
        except Exception as error:  # the process lives on for the next job
            self._is_busy = False
            jobs.fail(job.key, self._name, _reason(error), is_final=_is_final(error))
        finally:
            self._is_busy = False
            done.set()
            beat.join()

    def _plan(self, job: JobRow, jobs: Jobs, store: SqlStore) -> None:
        from ..tuning.inputs import inputs_from_store
        from ..tuning.plan import Effort, keep_plan, solve_plan

        request = _request_of(job)
        inputs = inputs_from_store(request, store)
        plan = solve_plan(inputs, request, Effort(progress=self._tell))
        with jobs.finishing(job.key, self._name) as made:
            made.plan_id = keep_plan(plan, inputs, store)

    def _tell(self, what: str, share: float) -> None:
        self._note, self._share = what, share

    def _beat(self, job: JobRow, jobs: Jobs, done: threading.Event) -> None:
        """Send a job's heartbeats; a job that is no longer ours is left."""
        while not done.wait(BEAT_S):
            if self._is_leaving:
                self._is_busy = True
                os.kill(os.getpid(), signal.SIGTERM)
                continue
            try:
                jobs.tell(job.key, self._name, self._note, min(self._share, 0.99))
            except LostJobError:
                if not done.is_set():
                    self._has_lost = True
                    os.kill(os.getpid(), signal.SIGTERM)
            except StoreError:  # the database is away for a moment; if for long, another worker takes the job
                continue


def _request_of(job: JobRow) -> PlanRequest:
    from ..tuning.request import PlanRequest
    from .jobs import PlanWanted

    wanted = from_json(PlanWanted, job.request)
    return PlanRequest(**{field.name: getattr(wanted, field.name) for field in fields(wanted)})


def _is_final(error: Exception) -> bool:
    """Return whether the job would fail again: our own errors say what is wrong with it, unless the database failed."""
    is_database = isinstance(error, StoreAwayError) or isinstance(error.__cause__, SQLAlchemyError)
    return isinstance(error, SpectuneError) and not is_database


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SpectuneError) else f"{type(error).__name__}: {text}"
