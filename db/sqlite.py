"""SQLite as a store: one file checked before it is touched, transactions that cover schema changes too."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from ..errors import StoreError
from .url import is_sqlite_memory, sqlite_file

MAGIC = b"SQLite format 3\0"
BUSY_TIMEOUT_S = 30.0  # how long a writer waits for its turn
WRITES = "spectune_writes"  # execution option: this transaction will write
BEGIN_WRITING = "BEGIN IMMEDIATE"


def sqlite_engine(url: URL, *, writes: bool = True) -> Engine:
    """Return an engine for a file or memory, with foreign keys enforced; writers queue instead of failing.

    Without `writes` a read-only file will do. StoreError where the file cannot be used; it is left as it was.
    """
    if (file := sqlite_file(url)) is not None:
        prepare_file(file, writes=writes)
        if not _is_writable(file):
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
    """Create the folder of a store's file and check that both may be used, without touching the file.

    Raises:
        StoreError: the path is a folder, holds something else, or may not be written although it will be.
    """
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


def _is_writable(file: Path) -> bool:
    return all(os.access(path, os.W_OK) for path in (file, file.parent) if path.exists())


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
