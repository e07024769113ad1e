"""The store: where measurements, traces and plans are remembered, and found again."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from .plan_store import PlanStore
from .record_store import OpenProfile, RecordStore
from .remote_url import is_service

__all__ = ["OpenProfile", "Store", "open_store"]


class Store(RecordStore, PlanStore, Protocol):
    """Everything spectune remembers: in a database (`SqlStore`) or at a planner service (`RemoteStore`); see there."""

    @property
    def url(self) -> str:
        """Where the store lies, for people: without secrets."""
        ...

    @property
    def note(self) -> str:
        """What a reader should know about what was read, e.g. that a service did not answer; "" where nothing."""
        ...

    def close(self) -> None:
        """Give up every connection; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_store(url: str | None = None, *, upgrade: bool = True, writes: bool = True) -> Store:
    """Open a store: a database, whose schema is created or upgraded where needed, or a planner service.

    `url` is the path of an SQLite file, an SQLAlchemy URL, or a service's https:// URL (http:// on this machine); None
    means SPECTUNE_STORE, else `store.db` in the user's data folder. Without `upgrade` this version's schema must be
    there; without `writes` a read-only SQLite file will do.

    Raises:
        StoreError: the text is no URL, the scheme is unknown, the file is damaged or may not be written, the server
            does not answer, or the schema is newer than this spectune. Nothing was written then.
    """
    from .sql_store import SqlStore
    from .url import named_place, resolve_url

    place = named_place(url)
    if is_service(place):
        from .remote import RemoteStore
        from .remote_url import service_url

        return RemoteStore(service_url(place))
    return SqlStore(resolve_url(place), upgrade=upgrade, writes=writes)
