"""What a database raises, as a StoreError of one line without secrets, and whether trying again may help."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from ..errors import StoreAwayError, StoreError
from .sqlite import BEGIN_WRITING
from .url import MASK, secrets_of, shown, sqlite_file

FREE = "free some space"
LEAST_FREE_BYTES = 2**20  # a disk with less is full
MAY_BE_FULL = ("disk I/O error", "unable to open database file")  # what SQLite says there
ADVICE = (  # part of a driver's message -> what to do
    ("not a database", "restore the file from a copy or choose another path"),
    ("malformed", "restore the file from a copy or choose another path"),
    ("Could not decode to UTF-8", "the file is damaged; restore it from a copy or choose another path"),
    ("locked", "another program is writing for long; wait for it or stop it"),
    ("readonly", "change the permissions of the file and its folder"),
    ("disk is full", FREE),
    ("No space left", FREE),
    ("quota exceeded", FREE),
    ("disk I/O error", "see that its disk works and has space left"),
    ("unable to open database file", "see that its folder is there, may be written and has space left"),
    ("too long", "use a shorter name"),
    ("already exists", "the schema was changed by hand; choose another database"),
    ("no such table", "the schema was changed by hand; choose another database"),
)
ACCESS_ADVICE = "check the URL, and that the database runs and lets you in"
VALUE_ADVICE = "check the values to be stored"
BEGUN_AGAIN = ("40001", "40P01")  # SQLSTATE: PostgreSQL undid a transaction that met another, or a deadlock


@contextmanager
def one_line_errors(url: URL) -> Iterator[None]:
    """Turn what the database raises into a StoreError of one line; a cause that quotes a password is dropped."""
    try:
        yield
    except SQLAlchemyError as error:
        is_silent = any(secret in str(error) for secret in secrets_of(url))
        kind = StoreAwayError if _is_away(error) else StoreError
        raise kind(f"{shown(url)}: {_reason(error, url)}") from (None if is_silent else error)
    except OverflowError as error:  # of SQLite's driver, which SQLAlchemy lets through
        raise StoreError(f"{shown(url)}: a number is larger than the store can keep; use one below 2**63") from error


def _is_away(error: SQLAlchemyError) -> bool:
    """Return whether the transaction may succeed later: no connection, a lost one, no turn, or a lost fight."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or getattr(error.orig, "sqlstate", None) in BEGUN_AGAIN:
        return True
    if error.statement == BEGIN_WRITING and "locked" in str(error.orig):  # others write: nothing of ours was begun
        return True
    is_sqlite = type(error.orig).__module__.startswith("sqlite3")
    return isinstance(error, OperationalError) and error.statement is None and not is_sqlite


def _reason(error: Exception, url: URL) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    line = one_line(str(cause), url)
    if any(part in line for part in MAY_BE_FULL) and _is_full(url):
        return f"{line}: the disk is full; {FREE}"
    otherwise = VALUE_ADVICE if isinstance(error, DataError | IntegrityError) else ACCESS_ADVICE
    advice = next((advice for part, advice in ADVICE if part in line), otherwise)
    return f"{line}; {advice}"


def _is_full(url: URL) -> bool:
    file = sqlite_file(url) if url.get_backend_name() == "sqlite" else None
    try:
        return file is not None and shutil.disk_usage(file.absolute().parent).free < LEAST_FREE_BYTES
    except OSError:  # no such folder
        return False


def one_line(text: str, url: URL) -> str:
    """Return a text as one line, with stars for the secrets of a URL."""
    line = " ".join(text.split())
    for secret in secrets_of(url):
        line = line.replace(secret, MASK)
    return line
