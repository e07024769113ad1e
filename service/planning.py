"""Looks after the processes that plan: starts and restarts them, and releases what a dead one held.

A process that plans: leases one job after the other and tells how far it is.

A process that left a job at once ends and is replaced: it may have been in the middle of an import. All end with the
service, whose pipe closes then, whatever ended it.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from ..db.jobs.jobs import JobRow, Jobs, LostJobError
from ..db.jobs.receipts import IdempotencyStore
from ..db.jobs.uploads import Uploads
from ..db.sql.sql_store import SqlStore
from ..db.url import resolve_url
from ..errors import SpectuneError, StoreAwayError, StoreError
from ..profiler.records.wire import from_json
from .log import tell

if TYPE_CHECKING:
    from ..tuning.request import PlanRequest


LOOK_S = 0.2
POLITENESS = 5  # of 19, as `nice` counts: the service answers before its workers plan
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # before a process that died is replaced
STEADY_S = 60.0  # after so long, a death is not the sequel of the one before
CLEAN_EVERY_S = 3600.0
GRACE_S = 5.0  # for a process to end by itself


@dataclass(slots=True, kw_only=True)
class _Planner:
    """One process, the name under which it leases jobs, and our end of the pipe; its closing tells that we ended."""

    name: str
    process: SpawnProcess
    pipe: Connection
    began: float


class Planning:
    """The workers of one service, and its housekeeping; runs in its own thread."""

    def __init__(self, store: SqlStore, workers: int, politeness: int = POLITENESS) -> None:
        self._politeness = politeness
        self._store, self._count = store, workers if store.is_shared else 0
        self._jobs = Jobs(store)
        self._workers: list[_Planner] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause_s, self._next_start = FIRST_PAUSE_S, float("-inf")

    @property
    def is_alive(self) -> bool:
        """Whether every worker that is wanted lives."""
        living = sum(worker.process.is_alive() for worker in list(self._workers))
        return living >= self._count

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread = threading.Thread(target=self._run, name="spectune-planning", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End every process; what they were at waits for the next service. A second call does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * GRACE_S)
            self._thread = None
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            _end(worker)
            self._let_go(worker, "the service was stopped", counts=False)
        self._workers = []
        atexit.unregister(self.stop)

    def _run(self) -> None:
        cleaned_at = float("-inf")
        while not self._stop.wait(LOOK_S):
            try:
                self._replace_the_dead()
                if monotonic() - cleaned_at > CLEAN_EVERY_S:
                    cleaned_at = monotonic()
                    self._clean()
            except Exception as error:  # whatever fails now may work the next time
                tell("planning failed", level=logging.ERROR, error=f"{type(error).__name__}: {error}")

    def _replace_the_dead(self) -> None:
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            _end(worker)
            self._workers.remove(worker)
            if worker.process.exitcode == 0:  # it left on purpose, and is replaced at once
                self._let_go(worker, "its worker was ended", counts=False)  # it may not have been able to itself
                continue
            why = f"its process ended with exit code {worker.process.exitcode}"
            tell("worker ended", level=logging.WARNING, worker=worker.name, exit_code=worker.process.exitcode)
            self._let_go(worker, why, counts=True)
            is_sequel = monotonic() - worker.began < STEADY_S
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if is_sequel else FIRST_PAUSE_S
            self._next_start = monotonic() + self._pause_s
        if monotonic() >= self._next_start:
            while len(self._workers) < self._count and not self._stop.is_set():
                self._workers.append(self._started())

    def _started(self) -> _Planner:
        name = f"{socket.gethostname()[:60]}-{secrets.token_hex(8)}"
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (self._store.address, name, self._politeness, theirs)
        process = context.Process(target=work_for, args=arguments, name=f"spectune-{name}")
        process.start()
        theirs.close()
        tell("worker started", worker=name, pid=process.pid)
        return _Planner(name=name, process=process, pipe=ours, began=monotonic())

    def _let_go(self, worker: _Planner, why: str, *, counts: bool) -> None:
        try:
            self._jobs.release(worker.name, why, counts=counts)
        except StoreError as error:  # its jobs are taken up when their heartbeat is old
            tell("jobs not released", level=logging.WARNING, worker=worker.name, error=str(error))

    def _clean(self) -> None:
        receipts, uploads = IdempotencyStore(self._store).drop_old(), Uploads(self._store).drop_old()
        tell("cleaned", receipts=receipts, uploads=uploads, jobs=self._jobs.drop_ended())


def _end(worker: _Planner) -> None:
    worker.process.join(GRACE_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.pipe.close()


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
        from ..tuning.plan import SolveOptions, keep_plan, solve_plan

        request = _request_of(job)
        inputs = inputs_from_store(request, store)
        plan = solve_plan(inputs, request, SolveOptions(progress=self._tell))
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
