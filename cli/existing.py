"""A store that is only looked into: none is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..db.store import Store

NOTHING = "so it remembers nothing; run: spectune profile"


def not_profiled(target: str, options: str = "") -> str:
    """Return the advice where a store should know a target; `options` of the profile end with a blank."""
    return f"so nothing is known of {target}; run: spectune profile {options}--target {target}, or give its store"


def as_it_is(store: str | None) -> str | None:
    """Return where to look into the store: in memory, where there is none yet."""
    from ..db.url import resolve_url, sqlite_file

    file = sqlite_file(resolve_url(store))
    return store if file is None or file.exists() else ":memory:"


def opened_as_it_is(store: str | None) -> Store:
    """Open a store without changing it, one in memory where there is none yet.

    StoreError: it cannot be opened, or its schema is older and needs an upgrade.
    """
    from ..db import open_store
    from ..db.url import is_sqlite_memory, resolve_url

    place = as_it_is(store)
    return open_store(place, upgrade=is_sqlite_memory(resolve_url(place)))


def opened_there(store: str | None, advice: str, *, writes: bool = True) -> Store:
    """Open a store; StoreError with some advice where there is none yet."""
    from ..db import open_store

    require_there(store, advice)
    return open_store(store, writes=writes)


def require_there(store: str | None, advice: str) -> None:
    """Raise StoreError with some advice where there is no store yet, which a look into memory would hide."""
    from ..db.url import resolve_url, shown
    from ..errors import StoreError

    if as_it_is(store) != store:
        place = shown(resolve_url(store))
        raise StoreError(f"there is no store at {place}, {advice}")
