"""Observations on their way to the store, written by a thread of their own, never by the decoding one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock, Thread

from ...db import open_store
from ...db.url import settled_place
from ..batch.faults import reason_of

MOST_WAITING = 64  # documents; the oldest are dropped where the store stays away
Keep = Callable[[str], None]  # writes one document, and raises where it cannot


class ObservationWriter:
    """Writes documents to a store in the background; failed ones wait, and set `failure` instead of raising."""

    def __init__(self, keep: Keep) -> None:
        self.written = self.dropped = 0
        self.failure = ""
        self._keep = keep
        self._waiting: deque[str] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None

    @property
    def waiting(self) -> int:
        """Number of documents not written yet."""
        return len(self._waiting)

    def submit(self, document: str) -> None:
        """Queue a document; returns at once."""
        self._enqueue(document)
        self._start()

    def close(self, document: str | None = None, *, timeout_s: float = 5.0) -> None:
        """Write the waiting documents and one more; return when done or after `timeout_s`; the thread continues."""
        if document is not None:
            self._enqueue(document)
        thread = self._start()
        if thread is not None:
            thread.join(timeout_s)
        elif self.waiting:  # at the end of the process there are no new threads
            self._write_all()

    def _start(self) -> Thread | None:
        """Return the writing thread, started if need be; None where nothing waits or no thread can start."""
        with self._lock:
            if self._thread is not None or not self._waiting:
                return self._thread
            thread = Thread(target=self._write_all, name="spectune-observations", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left, or the process is about to end
                self.failure = reason_of(error)
            else:
                self._thread = thread
            return self._thread

    def _enqueue(self, document: str) -> None:
        with self._lock:
            self._waiting.append(document)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1

    def _write_all(self) -> None:
        while (document := self._next()) is not None:
            try:
                self._keep(document)
            except Exception as error:  # whatever ails the store, decoding goes on
                self._give_back(document, reason_of(error))
                return
            self.written += 1
            self.failure = ""

    def _next(self) -> str | None:
        """Return the oldest document; None, which ends the thread, where there is none."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None

    def _give_back(self, document: str, failure: str) -> None:
        with self._lock:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.appendleft(document)
            else:
                self.dropped += 1
            self.failure = failure
            self._thread = None


def keeper(store: str | None, plan_id: int) -> Keep:
    """Return a writer of documents beside a stored plan, which opens the store only for that, from any directory."""
    return partial(_keep, settled_place(store), plan_id)


def _keep(store: str, plan_id: int, document: str) -> None:
    with open_store(store) as opened:
        opened.add_observation(plan_id, document)
