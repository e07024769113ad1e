"""Waiting for a database server that went away, without losing a write or storing it twice.

A connection lost during a commit leaves open whether it took place. So the transaction writes a key of its own beside
its rows, and first of all when it is repeated: if an earlier attempt was stored, or is just being stored, the server
refuses the key once that one has ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar
from uuid import uuid4

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..errors import StoreAwayError
from .tables import WriteTable

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

Result = TypeVar("Result")


def patiently(attempt: Callable[[], Result], patience_s: float) -> Result:
    """Return an attempt's result, repeated while the database is away; StoreAwayError after `patience_s`."""
    deadline, pause_s = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return attempt()
        except StoreAwayError:
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # not all clients at the same moment
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class KeptOnce(Generic[Result]):
    """One transaction under one key; it may be attempted again and is stored at most once."""

    def __init__(self, writing: Callable[[], AbstractContextManager[Session]], work: Callable[[Session], Result]):
        """Describe a transaction: `writing` opens it, `work` writes its rows and returns the result."""
        self._writing, self._work = writing, work
        self._row = {"key": uuid4().hex}
        self._results: list[Result] = []  # of attempts whose work was done, the last of which may have been kept
        self._is_first = True

    def attempt(self) -> Result:
        """Return the result of the attempt that was stored, now or earlier; StoreAwayError asks for another attempt."""
        with self._writing() as session:
            if self._was_kept(session):
                return self._results[-1]
            self._results.append(self._work(session))
        return self._results[-1]

    def _was_kept(self, session: Session) -> bool:
        is_first, self._is_first = self._is_first, False
        if is_first:
            session.execute(insert(WriteTable), self._row)
            return False
        try:
            with session.begin_nested():
                session.execute(insert(WriteTable), self._row)
        except IntegrityError:
            return True
        return False
