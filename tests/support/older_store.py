"""A store as an older version of spectune left it."""

from __future__ import annotations

from pathlib import Path

from alembic import command

from spectune.db.sql.engines import sqlite_engine
from spectune.db.sql.migrate import migration_config, stored_versions
from spectune.db.url import resolve_url

OLDER = "0004"


def make_older(file: Path) -> None:
    """Take the schema of an SQLite store back to that of an older version."""
    engine = sqlite_engine(resolve_url(str(file)))
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), OLDER)
    engine.dispose()


def is_older(file: Path) -> bool:
    """Say whether a store still has that schema."""
    engine = sqlite_engine(resolve_url(str(file)))
    with engine.begin() as connection:
        versions = stored_versions(connection)
    engine.dispose()
    return versions == (OLDER,)
