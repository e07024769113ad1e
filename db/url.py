"""Where a store lies: a path or a database URL, and how it is shown without its password."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import StoreError
from .remote_url import is_service

STORE_VARIABLE = "SPECTUNE_STORE"
SECRET_OPTIONS = frozenset({"password", "passwd", "pwd", "sslpassword", "ssl_passphrase", "odbc_connect"})
MASK = "***"


def default_path() -> Path:
    """Return the SQLite file used when neither an argument nor SPECTUNE_STORE names a store."""
    return Path(platformdirs.user_data_dir("spectune", appauthor=False)) / "store.db"


def named_place(url: str | None = None) -> str:
    """Return what names the store: the argument, else SPECTUNE_STORE, else the default path."""
    return url or os.environ.get(STORE_VARIABLE) or str(default_path())


def settled_place(url: str | None = None) -> str:
    """Return the store's place, whatever folder and SPECTUNE_STORE, maybe with a password; or StoreError."""
    place = named_place(url)
    return place if is_service(place) else resolve_url(place).render_as_string(hide_password=False)


def resolve_url(url: str | None = None) -> URL:
    """Return where a store lies for SQLAlchemy (`str` hides a password); None is SPECTUNE_STORE or the default.

    Raises:
        StoreError: the text is neither a path nor a URL; it may hold a password, so the message does not repeat it.
    """
    place = named_place(url)
    if place == ":memory:":
        return URL.create("sqlite")
    if "://" not in place:
        return URL.create("sqlite", database=str(_absolute(place)))
    return _with_absolute_file(_parse(place))


def sqlite_file(url: URL) -> Path | None:
    """Return the file behind an SQLite URL, or None for a server, for memory and for SQLite's own file: URIs."""
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    if not is_file or str(url.database).startswith("file:"):
        return None
    return Path(str(url.database))


def is_sqlite_memory(url: URL) -> bool:
    """Say whether the store lives in this process's memory only."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def shown(url: URL) -> str:
    """Return the URL for people: passwords, in options too, are replaced by stars."""
    options = {name: MASK if name.lower() in SECRET_OPTIONS else value for name, value in url.query.items()}
    return url.set(query=options).render_as_string(hide_password=True)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return every text of the URL that no message may repeat."""
    options = [url.query[name] for name in url.query if name.lower() in SECRET_OPTIONS]
    texts = [text for option in options for text in ([option] if isinstance(option, str) else option)]
    return tuple(text for text in (str(url.password or ""), *texts) if text)


def _parse(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):  # their messages may quote the password, so they are not chained
        scheme = text.split("://", 1)[0]
    raise StoreError(
        f"cannot read the store URL that starts with {scheme!r}; "
        "write a path, or dialect://user:password@host:port/name with special characters percent-encoded"
    )


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _with_absolute_file(url: URL) -> URL:
    """Make the file of an SQLite URL absolute: connections opened after a chdir must reach the same store."""
    file = sqlite_file(url)
    return url if file is None else url.set(database=str(file.absolute()))
