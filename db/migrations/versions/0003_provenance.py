"""Where plans come from and whether they count; hashes of every document; tables that refuse to be changed."""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.String(64)
NAME = sa.String(120)
DOCUMENT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
HASHED = {  # what stands before the hash in the index
    "measurement": ["surface_id"],
    "overhead": [],
    "trace": [],
    "pairwise": [],
}
APPEND_ONLY = (
    "surface",
    "measurement",
    "overhead",
    "trace",
    "pairwise",
    "plan",
    "manifest",
    "plan_source",
    "plan_event",
    "observation",
    "validation",
)
ROWS_AT_ONCE = 1000


def upgrade() -> None:
    """Hash what is there, create the tables, and lock what is only ever added to."""
    for name, before in HASHED.items():
        _add_hashes(f"spectune_{name}")
        op.create_index(f"ix_spectune_{name}_hash", f"spectune_{name}", [*before, "content_hash"])
    _create_provenance()
    _create("spectune_write", _column("key", KEY))
    op.create_index("ix_spectune_write", "spectune_write", ["key"], unique=True)
    op.create_index("ix_spectune_write_created", "spectune_write", ["created"])
    _create("spectune_door")
    _lock()


def downgrade() -> None:
    """Unlock the tables; where plans came from and which of them were promoted or retired is lost."""
    _unlock()
    for name in ("door", "write", "plan_event", "plan_source", "manifest"):
        op.drop_table(f"spectune_{name}")
    for name in HASHED:
        op.drop_index(f"ix_spectune_{name}_hash", f"spectune_{name}")
        op.drop_column(f"spectune_{name}", "content_hash")


def _add_hashes(name: str) -> None:
    op.add_column(name, sa.Column("content_hash", KEY, nullable=True))
    _fill(name)
    with op.batch_alter_table(name) as table:
        table.alter_column("content_hash", existing_type=KEY, nullable=False)


def _fill(name: str) -> None:
    connection = op.get_bind()
    table = sa.table(name, sa.column("id"), sa.column("document"), sa.column("content_hash"))
    change = sa.update(table).where(table.c.id == sa.bindparam("number")).values(content_hash=sa.bindparam("hash"))
    last = 0
    while rows := connection.execute(
        sa.select(table.c.id, table.c.document).where(table.c.id > last).order_by(table.c.id).limit(ROWS_AT_ONCE)
    ).all():
        hashes = [{"number": number, "hash": hashlib.sha256(text.encode()).hexdigest()} for number, text in rows]
        connection.execute(change, hashes)
        last = rows[-1][0]


def _create_provenance() -> None:
    _create("spectune_manifest", _column("document", DOCUMENT), _column("content_hash", KEY))
    op.create_index("ix_spectune_manifest", "spectune_manifest", ["content_hash"], unique=True)
    _create(
        "spectune_plan_source",
        _of_plan("spectune_plan_source"),
        _column("kind", NAME),
        _column("content_hash", KEY),
        _column("name", NAME),
        _column("is_held", sa.Boolean()),
    )
    op.create_index("ix_spectune_plan_source", "spectune_plan_source", ["plan_id"])
    op.create_index("ix_spectune_plan_source_hash", "spectune_plan_source", ["content_hash"])
    event = (_column("action", NAME), _column("by", NAME), _column("reason", DOCUMENT))
    _create("spectune_plan_event", _of_plan("spectune_plan_event"), *event)
    op.create_index("ix_spectune_plan_event", "spectune_plan_event", ["plan_id"])


def _lock() -> None:
    """Let SQLite and PostgreSQL refuse every UPDATE and DELETE while spectune_door has no row."""
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        op.execute(POSTGRES_REFUSAL)
    statements = {"sqlite": SQLITE_LOCK, "postgresql": POSTGRES_LOCK}.get(dialect, ())
    for name in APPEND_ONLY:
        for statement in statements:
            op.execute(statement.format(table=f"spectune_{name}"))


def _unlock() -> None:
    dialect = op.get_bind().dialect.name
    for name in APPEND_ONLY if dialect in ("sqlite", "postgresql") else ():
        table = f"spectune_{name}"
        where = "" if dialect == "sqlite" else f" ON {table}"
        for what in ("update", "delete"):
            op.execute(f"DROP TRIGGER {table}_no_{what}{where}")
    if dialect == "postgresql":
        op.execute("DROP FUNCTION spectune_refuse")


SQLITE_LOCK = (
    "CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} WHEN NOT EXISTS (SELECT 1 FROM spectune_door) "
    "BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END",
    "CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} WHEN NOT EXISTS (SELECT 1 FROM spectune_door) "
    "BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END",
)
POSTGRES_REFUSAL = """
CREATE FUNCTION spectune_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM spectune_door) THEN
        IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$
"""
POSTGRES_LOCK = (
    "CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION spectune_refuse()",
    "CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION spectune_refuse()",
)


def _create(name: str, *columns: sa.Column[Any]) -> None:
    number = sa.Column("id", sa.Integer(), primary_key=True)
    op.create_table(name, number, *columns, _column("created", KEY))


def _column(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _of_plan(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("spectune_plan.id", name=f"fk_{table}_plan_id")
    return sa.Column("plan_id", sa.Integer(), key, nullable=False)
