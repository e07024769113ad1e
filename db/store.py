"""The store: where measurements, traces and plans are remembered, and found again."""

from __future__ import annotations

from .identities import Identities
from .imports import Imports
from .measurements import Measurements
from .plans import Plans
from .profiles import Profiles
from .traces import Traces
from .url import resolve_url


class Store(Identities, Imports, Measurements, Profiles, Traces, Plans):
    """Everything spectune remembers, in one database; open it with `open_store`, use it as a context manager."""


def open_store(url: str | None = None) -> Store:
    """Open a store, and create or upgrade its schema where needed.

    Args:
        url: the path of an SQLite file, or any SQLAlchemy URL; None means the SPECTUNE_STORE variable, else
            `store.db` in the user's data folder.

    Raises:
        StoreError: the text is no URL, the scheme is unknown, the file is damaged or may not be written, the server
            does not answer, or the schema is newer than this spectune. Nothing was written then.
    """
    return Store(resolve_url(url))
