"""Opening a store by its name: a database's, or a planner service's."""

from __future__ import annotations

from .store import Store
from .url import is_service, named_place, resolve_url


def open_store(url: str | None = None, *, upgrade: bool = True, writes: bool = True) -> Store:
    """Open a store: a database, whose schema is created or upgraded where needed, or a planner service.

    `url` is the path of an SQLite file, an SQLAlchemy URL, or a service's https:// URL (http:// on this machine); None
    means SPECTUNE_STORE, else `store.db` in the user's data folder. Without `upgrade` this version's schema must be
    there; without `writes` a read-only SQLite file will do.

    Raises:
        StoreError: the text is no URL, the scheme is unknown, the file is damaged or may not be written, the server
            does not answer, or the schema is newer than this spectune. Nothing was written then.
    """
    from .sql.sql_store import SqlStore

    place = named_place(url)
    if is_service(place):
        from .remote.remote_store import RemoteStore
        from .url import service_url

        return RemoteStore(service_url(place))
    return SqlStore(resolve_url(place), upgrade=upgrade, writes=writes)
