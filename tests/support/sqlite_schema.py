"""The schema of an SQLite database as statements that make it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection

OURS = "name NOT LIKE 'sqlite_%'"  # SQLite makes its own tables itself


def statements_of(connection: Connection) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what makes an SQLite database of the same tables, indices and triggers, and of the same rows."""
    made = connection.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND {OURS} ORDER BY rowid")
    statements: list[tuple[str, tuple[Any, ...]]] = [(sql, ()) for (sql,) in made]
    tables = (
        connection.exec_driver_sql(f"SELECT name FROM sqlite_master WHERE type = 'table' AND {OURS}").scalars().all()
    )
    for table in tables:
        for row in connection.exec_driver_sql(f'SELECT * FROM "{table}"'):
            statements.append((f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(row))})', tuple(row)))
    return statements
