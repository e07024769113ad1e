"""The databases a store lies in, SQLite and PostgreSQL, and what they raise: one line without secrets."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from ...errors import StoreAwayError, StoreError
from ..url import MASK, is_sqlite_memory, secrets_of, shown, sqlite_file

MAGIC = b"SQLite format 3\0"
BUSY_TIMEOUT_S = 30.0  # how long a writer waits for its turn
WRITES = "spectune_writes"  # execution option: this transaction will write
BEGIN_WRITING = "BEGIN IMMEDIATE"
LIBPQ_DRIVERS = ("psycopg", "psycopg2")
NOTICE: dict[str, int] = {  # libpq's names; what a URL says goes first
    "connect_timeout": 5,  # s
    "keepalives": 1,
    "keepalives_idle": 5,  # s without a word, then the other side is asked whether it is there
    "keepalives_interval": 2,  # s
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms until what was sent must have arrived
}
ALONE = text("SELECT pg_advisory_xact_lock(:number)")
TOGETHER = text("SELECT pg_advisory_xact_lock_shared(:number)")
SESSION: dict[str, int] = {  # the server's names: a client that is gone must not keep its turn
    "tcp_keepalives_idle": 30,  # s
    "tcp_keepalives_interval": 5,  # s
    "tcp_keepalives_count": 3,
    "idle_in_transaction_session_timeout": 600_000,  # ms; a process that is stopped answers keepalives
}
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


def sqlite_engine(url: URL, *, writes: bool = True) -> Engine:
    """Return an engine for a file or memory, with foreign keys enforced; writers queue instead of failing.

    Without `writes` a read-only file will do. StoreError where the file cannot be used; it is left as it was.
    """
    if (file := sqlite_file(url)) is not None:
        prepare_file(file, writes=writes)
        if not all(os.access(path, os.W_OK) for path in (file, file.parent) if path.exists()):
            url = _read_only(url, file)
    if is_sqlite_memory(url):  # one connection, shared by all threads in turn: a second one would be another database
        arguments = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
        engine = create_engine(url, poolclass=QueuePool, pool_size=1, max_overflow=0, connect_args=arguments)
    else:
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def prepare_file(file: Path, *, writes: bool = True) -> None:
    """Create the folder of a store's file; raise StoreError unless both may be used. The file is not touched."""
    try:
        if file.is_dir():
            raise StoreError(f"{file} is a folder; name a file, e.g. {file / 'store.db'}")
        file.parent.mkdir(parents=True, exist_ok=True)
        start = _first_bytes(file)
    except OSError as error:
        advice = "free some space" if error.errno == errno.ENOSPC else "choose a path you may write"
        raise StoreError(f"cannot use {file} as a store: {error.strerror}; {advice}") from error
    if start and start != MAGIC:
        raise StoreError(f"{file} is not an SQLite file, it starts with {start!r}; restore it or choose another path")
    for path in (file, file.parent) if writes or not start else ():
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreError(f"{path} may not be written; change its permissions or choose another path for the store")


def use_write_ahead_log(engine: Engine) -> None:
    """Let readers and one writer of the same file work at the same time; the file remembers it."""
    # Another process may be using the file in its old mode: then that mode stays, slower and just as safe.
    with closing(engine.raw_connection()) as connection, suppress(sqlite3.OperationalError):
        connection.cursor().execute("PRAGMA journal_mode=WAL").close()


def shrink(engine: Engine) -> None:
    """Give back the space that rows left which were taken out, unless another program is just at work on the file."""
    with closing(engine.raw_connection()) as connection, suppress(sqlite3.OperationalError):
        connection.cursor().execute("VACUUM").close()
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()  # else the log keeps all of it again


def outlast_power_cuts(engine: Engine) -> None:
    """Let every commit reach the disk before it returns: a flush each, for who answers other machines."""

    def flush(connection: Any, _record: Any, _proxy: Any) -> None:  # Any: as in _set_up
        connection.execute("PRAGMA synchronous=FULL").close()

    event.listen(engine, "checkout", flush)


def _read_only(url: URL, file: Path) -> URL:
    """Return the URL of a file that is only read: without locks where no other program uses it."""
    # A reader cannot take away the files that locks need; its owner could then not write to them, nor to the store.
    is_closed = not file.with_name(f"{file.name}-wal").exists()
    immutable = {"immutable": "1"} if is_closed else {}
    return url.set(database=f"file:{quote(str(file))}").update_query_dict({"mode": "ro", "uri": "true", **immutable})


def _first_bytes(file: Path) -> bytes:
    if not file.exists():
        return b""
    with file.open("rb") as stream:
        return stream.read(len(MAGIC))


def _set_up(connection: Any, _record: Any) -> None:  # Any: what the driver hands over has no common type
    connection.isolation_level = None  # transactions are opened by _begin alone, never by the driver
    connection.execute("PRAGMA foreign_keys=ON").close()
    # Beside a write-ahead log: a killed process loses nothing, a power cut at most the last commits, never the file.
    # A service does not acknowledge what a power cut may take back: see outlast_power_cuts.
    connection.execute("PRAGMA synchronous=NORMAL").close()


def _begin(connection: Connection) -> None:
    """Open the transaction; one that will write waits for its turn now, since it could not wait later."""
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql(BEGIN_WRITING if writes else "BEGIN")


def postgres_engine(url: URL) -> Engine:
    """Return an engine whose connections do not long outlive their other side.

    A silent server is noticed after about 10 s, a client after 45 s. A server that answers on the network but does
    nothing is waited for: it looks like a busy one.
    """
    is_libpq = url.get_driver_name() in LIBPQ_DRIVERS
    arguments = {name: value for name, value in NOTICE.items() if is_libpq and name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine, "connect", _set_up_postgres)
    return engine


def _set_up_postgres(connection: Any, _record: Any) -> None:  # Any: what the driver hands over has no common type
    cursor = connection.cursor()
    cursor.execute("; ".join(f"SET {name} = {value}" for name, value in SESSION.items()))
    cursor.close()
    connection.commit()


def wait_for_turn(session: Session, *names: str, is_shared: bool = False) -> None:
    """Lock these names until the transaction ends; writers of the same names wait, but sharers not for each other."""
    if session.connection().dialect.name == "postgresql":
        digest = hashlib.sha256("\0".join(("spectune", *names)).encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        session.connection().execute(TOGETHER if is_shared else ALONE, {"number": number})


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
