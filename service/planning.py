"""Looks after the processes that plan: starts and restarts them, and releases what a dead one held."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import secrets
import socket
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic

from ..db.jobs.jobs import Jobs
from ..db.jobs.receipts import IdempotencyStore
from ..db.jobs.uploads import Uploads
from ..db.sql.sql_store import SqlStore
from ..errors import StoreError
from .log import tell
from .worker import work_for

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
    """The workers of one service, and its housekeeping; runs in a thread of its own."""

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
