"""A store that is only looked into: none is made."""

from __future__ import annotations


def as_it_is(store: str | None) -> str | None:
    """Return where to look into the store: in memory, where there is none yet."""
    from ..db.url import resolve_url, sqlite_file

    file = sqlite_file(resolve_url(store))
    return store if file is None or file.exists() else ":memory:"
