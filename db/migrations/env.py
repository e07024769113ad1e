"""How alembic runs the migrations: on the caller's connection and transaction, by path, so without relative imports."""

from __future__ import annotations

from typing import Any

from alembic import context

from spectune.db.sql.migrate import VERSION_TABLE
from spectune.db.sql.service_tables import Base  # with their tables and those of db.sql.tables
from spectune.db.sql.tables import TABLE_PREFIX


def is_ours(name: str | None, kind: str, _parents: Any) -> bool:  # Any: alembic's mapping of names, not used
    """Say whether alembic may compare this object: the tables of other programs in the database are theirs."""
    return kind != "table" or (name or "").startswith(TABLE_PREFIX)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    render_as_batch=True,  # SQLite alters tables by copying them
)
with context.begin_transaction():
    context.run_migrations()
