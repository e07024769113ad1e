"""Solve the groups of a plan's cells in several processes.

Processes are spawned, not forked: this one has threads, and a fork of it could hang. Each gets the work once, then
group after group. A killed process or Ctrl-C ends the whole, and leaves no process behind.
"""

from __future__ import annotations

import math
import multiprocessing
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from ..errors import PlanError
from ..planner.pricing.cells import Cell
from ..profiler.cpu import allowed_cores, cpu_allowance
from .steps import Progress

Group = tuple[Cell, ...]
Outcome = TypeVar("Outcome")
Work = Callable[[Group], Outcome]

FEWEST_CELL_POSITIONS = 50_000  # a process starts in about 1.5 s; one cell of so many positions takes about 8 s


def cores_available() -> int:
    """Return how many processes can compute at once: the cores this process may use, within its quota."""
    cores, quota = len(allowed_cores()), cpu_allowance().quota
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def jobs_that_pay(cells: int, positions: int) -> int:
    """Return the number of processes to solve in: the cores available, or 1 where starting others takes longer."""
    return cores_available() if cells * positions >= FEWEST_CELL_POSITIONS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A parallel `map` over groups in at most `jobs` processes; with 1, in this one alone."""

    jobs: int
    progress: Progress

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise PlanError(f"a plan is solved in at least 1 process, got {self.jobs}; 1 is this one alone")

    def __call__(self, work: Work[Outcome], groups: Iterable[Group]) -> Iterator[Outcome]:
        """Yield the result for each group, in their order; there are never more processes than groups.

        SpectuneError where the work raised it; PlanError where a process was killed.
        """
        every = list(groups)
        jobs = min(self.jobs, len(every))
        outcomes = map(work, every) if jobs < 2 else _in_processes(work, every, jobs)
        return self._told(outcomes, len(every))

    def _told(self, outcomes: Iterable[Outcome], count: int) -> Iterator[Outcome]:
        for done, outcome in enumerate(outcomes, start=1):
            self.progress(f"solved {done} of {count} parts of the plan", done / count)
            yield outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    error: Exception
    told: str


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    doing: int | None = None  # place of its group


def _in_processes(work: Work[Outcome], groups: Sequence[Group], jobs: int) -> Iterator[Outcome]:
    """Yield in the groups' order; each group goes to the next free process, the first ones first."""
    done: dict[int, Outcome | _Fault] = {}
    waiting = iter(range(len(groups)))
    with _workers(work, jobs) as workers:
        for worker in workers:
            _give(worker, groups, waiting)
        for place in range(len(groups)):
            while place not in done:
                for worker in _ready(workers):
                    assert worker.doing is not None
                    done[worker.doing] = _taken(worker)
                    _give(worker, groups, waiting)
            yield _unless_raised(done.pop(place))  # as `map` does: of several faults the first one in order


@contextmanager
def _workers(work: Work[Outcome], jobs: int) -> Iterator[list[_Worker]]:
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, theirs), daemon=True)
            with _deaf_to_ctrl_c():
                process.start()
            theirs.close()  # so that a killed process is seen as the end of its pipe
            workers.append(_Worker(process=process, connection=ours))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, and for good in a process that is started meanwhile."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say so
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def _serve(work: Work[Outcome], connection: Connection) -> None:
    """Do groups until no more come; Ctrl-C is the other process's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):  # the other process is gone
        while True:
            connection.send(_outcome(work, connection.recv()))


def _outcome(work: Work[Outcome], group: Group) -> Outcome | _Fault:
    try:
        return work(group)
    except Exception as error:  # carried over and raised there
        told = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception may refuse to be copied in any way it likes
            return _Fault(error=RuntimeError(str(error)), told=told)
        return _Fault(error=error, told=told)


def _give(worker: _Worker, groups: Sequence[Group], waiting: Iterator[int]) -> None:
    worker.doing = next(waiting, None)
    if worker.doing is not None:
        with suppress(BrokenPipeError):  # it is gone, and reading from it will say so
            worker.connection.send(groups[worker.doing])


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    ready = wait([worker.connection for worker in workers if worker.doing is not None])
    return [worker for worker in workers if worker.connection in ready]


def _taken(worker: _Worker) -> Any:  # Any: a pipe does not know what goes through it
    try:
        return worker.connection.recv()
    except (EOFError, ConnectionResetError) as error:
        worker.process.join()
        raise PlanError(
            f"a process that solved a part of the plan was ended (exit code {worker.process.exitcode}), perhaps for "
            "want of memory; use fewer with --jobs"
        ) from error


def _unless_raised(outcome: Outcome | _Fault) -> Outcome:
    if isinstance(outcome, _Fault):
        outcome.error.add_note(f"raised in another process:\n{outcome.told}")
        raise outcome.error
    return outcome
