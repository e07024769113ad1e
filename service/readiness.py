"""Whether this service can serve its database, checked once in a while: anyone may want to know."""

from __future__ import annotations

from threading import Lock
from time import monotonic

from ..db.migrate import HEAD
from ..db.news import schema_of
from ..db.sql_store import SqlStore
from ..errors import StoreError


class Readiness:
    """What is wrong with the database, remembered for a moment."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self._lock = store, Lock()
        self._seen_at = float("-inf")
        self.wrong: str | None = None  # in words; None where nothing is

    def is_fresh(self, fresh_s: float) -> bool:
        """Whether the database was checked within these seconds."""
        return monotonic() - self._seen_at <= fresh_s

    def refresh(self, asked: float) -> None:
        """Ask the database, unless another thread has begun to after this moment of `monotonic`."""
        with self._lock:
            if self._seen_at < asked:
                began = monotonic()
                self.wrong, self._seen_at = _wrong_with(self._store), began


def _wrong_with(store: SqlStore) -> str | None:
    try:
        seen = schema_of(store)
    except StoreError as error:
        return f"the database does not answer: {error}"
    if seen != HEAD:
        return f"the database has schema {seen}, this version needs {HEAD}; restart the service"
    return None
