"""A copy of a store as it is at one moment, made while others write."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from ...errors import StoreError
from ..sql.database import Database

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems say that have none, exFAT for one


def back_up(database: Database, file: Path) -> None:
    """Copy an SQLite store to a new file, whole or not at all, or raise StoreError; open it like any store."""
    if database.is_server:
        raise StoreError(
            f"{database.url} is backed up by its server's own tools, e.g. pg_dump --format=custom; "
            "to take its measurements and plans elsewhere: spectune db export FOLDER"
        )
    if file.exists():
        raise StoreError(f"{file} is there already; name a new file, so that no older backup is lost")
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        _copy(database, part)
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        _name(part, file)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot back up to {file}: {error}; choose one you may write") from error
    finally:
        with suppress(OSError):  # where it could not be made, it cannot be removed
            part.unlink(missing_ok=True)


def _copy(database: Database, part: Path) -> None:
    with database._reading() as session, closing(sqlite3.connect(part)) as target:
        source = session.connection().connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(target)  # of what this transaction sees
        target.execute("PRAGMA journal_mode=DELETE").close()  # one file, whole by itself
        (verdict,) = target.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise StoreError(f"{database.url} is damaged ({verdict}); restore an earlier backup")


def _name(part: Path, file: Path) -> None:
    """Give a whole copy its name; raise FileExistsError where another backup has just taken it."""
    try:
        os.link(part, file)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        file.open("xb").close()
        part.replace(file)
