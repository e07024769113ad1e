"""Bring a database to this version's schema, all of it or nothing."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from ...errors import StoreError

HEAD = "0005"
VERSION_TABLE = "spectune_version"
MIGRATIONS = Path(__file__).parents[1] / "migrations"
POSTGRES_LOCK = 0x73706563  # any number, the same in every process

_one_at_a_time = threading.Lock()  # alembic keeps the running migration in module variables


class OlderSchemaError(StoreError):
    """A database that may not be changed has no or an older schema; it holds the command that changes it."""

    def __init__(self, shown_url: str, versions: Sequence[str]) -> None:
        found = f"schema {', '.join(versions)}, this spectune's is {HEAD}" if versions else "nothing of spectune in it"
        self.seen = f"{shown_url} has {found}"
        self.advice = f"spectune db upgrade --store {shlex.quote(shown_url)}"
        super().__init__(f"{self.seen}; run: {self.advice}")


def migration_config(connection: Connection) -> Config:
    """Return alembic's settings for a connection; alembic works inside its transaction and never commits it."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def stored_versions(connection: Connection) -> tuple[str, ...]:
    """Return the schema versions the database says it has: none where it is new, else one."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()


def migrate(reader: Engine, writer: Engine, shown_url: str) -> None:
    """Create or upgrade the schema in one transaction; a database that is up to date is only read.

    `writer` opens transactions one after the other, across processes where the database can.
    StoreError: the schema is newer than this spectune's. After any error, SQLAlchemy's too, nothing was changed.
    """
    with reader.begin() as connection:
        if _is_current(connection, shown_url):
            return
    with _one_at_a_time, writer.begin() as connection:
        _wait_for_other_processes(connection)
        if not _is_current(connection, shown_url):
            command.upgrade(migration_config(connection), "head")


def require_current(connection: Connection, shown_url: str) -> None:
    """Raise OlderSchemaError where a database has an older schema or none, StoreError where a newer one."""
    if not _is_current(connection, shown_url):
        raise OlderSchemaError(shown_url, stored_versions(connection))


def _is_current(connection: Connection, shown_url: str) -> bool:
    versions = stored_versions(connection)
    if not versions or versions == (HEAD,):  # neither can be newer; alembic reads all its scripts to tell
        return bool(versions)
    scripts = ScriptDirectory.from_config(migration_config(connection))
    known = {script.revision for script in scripts.walk_revisions()}
    if unknown := sorted(set(versions) - known):
        raise StoreError(
            f"{shown_url} has schema {', '.join(unknown)}, newer than this spectune's {HEAD}; "
            "update spectune or choose another store"
        )
    return False


def _wait_for_other_processes(connection: Connection) -> None:
    """SQLite's writers already wait at BEGIN IMMEDIATE; PostgreSQL needs a lock until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": POSTGRES_LOCK})
