"""What a service remembers of its store for a moment, and how it spares one that has just failed."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from types import TracebackType

from ..db.sql.migrate import HEAD
from ..db.sql.news import schema_of
from ..db.sql.sql_store import SqlStore
from ..errors import StoreAwayError, StoreError

REST_S = 0.5


class Backoff:
    """Remembers for a moment that the store failed; its block is then refused with the same words.

    A store that has just failed gets no request at once: all who waited would wait as long, one by one.
    """

    def __init__(self) -> None:
        self._told = ""
        self._failed_at = float("-inf")

    def __enter__(self) -> None:
        if monotonic() - self._failed_at < REST_S:
            raise StoreAwayError(self._told)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, StoreError):
            self._told, self._failed_at = str(error), monotonic()


class Remembered:
    """Something of a store that is read again once it is too old; threads that ask at once share one reading."""

    def __init__(self) -> None:
        self._lock, self._setback = Lock(), Backoff()
        self._read_at = float("-inf")

    def is_fresh(self, fresh_s: float) -> bool:
        """Whether the store was looked at within these seconds."""
        return monotonic() - self._read_at <= fresh_s

    def refresh(self, asked: float | None = None) -> None:
        """Read what is new, unless a thread began to after the `monotonic` time `asked`; StoreError if away."""
        asked = monotonic() if asked is None else asked
        with self._lock, self._setback:
            if self._read_at < asked:
                began = monotonic()
                self._look()
                self._read_at = began

    def _look(self) -> None:
        raise NotImplementedError


class Readiness(Remembered):
    """What is wrong with the database: anyone may want to know."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__()
        self._store = store
        self.wrong: str | None = None  # in words; None where nothing is

    def _look(self) -> None:
        try:
            seen = schema_of(self._store)
        except StoreError as error:
            self.wrong = f"the database does not answer: {error}"
            return
        advice = f"the database has schema {seen}, this version needs {HEAD}; restart the service"
        self.wrong = None if seen == HEAD else advice
