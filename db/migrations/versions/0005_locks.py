"""Find a surface's newest timing at once; let append-only tables be neither written over nor emptied.

SQLite's INSERT OR REPLACE and PostgreSQL's TRUNCATE call no trigger of UPDATE or DELETE.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

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
UNIQUE: dict[str, tuple[str, ...]] = {  # what no two rows share beside their number
    "surface": ("device", "model", "role", "regime", "dtype", "attention"),
    "manifest": ("content_hash",),
}
SQLITE_LOCK = (  # where a row makes room for another, SQLite calls no trigger of DELETE
    "CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN NOT EXISTS (SELECT 1 FROM spectune_door) "
    "AND EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
)
POSTGRES_REFUSAL = """
CREATE FUNCTION spectune_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$
"""
POSTGRES_LOCK = (
    "CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION spectune_refuse_truncate()"
)


def upgrade() -> None:
    """Add an index and the locks; no row is changed."""
    op.create_index("ix_spectune_measurement_newest", "spectune_measurement", ["surface_id", "id"])
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        op.execute(POSTGRES_REFUSAL)
    for name in APPEND_ONLY:
        if dialect == "sqlite":
            op.execute(SQLITE_LOCK.format(table=f"spectune_{name}", same=_same_row(name)))
        elif dialect == "postgresql":
            op.execute(POSTGRES_LOCK.format(table=f"spectune_{name}"))


def downgrade() -> None:
    """Take index and locks away again; what is stored stays."""
    op.drop_index("ix_spectune_measurement_newest", "spectune_measurement")
    dialect = op.get_bind().dialect.name
    for name in APPEND_ONLY:
        if dialect == "sqlite":
            op.execute(f"DROP TRIGGER spectune_{name}_no_replace")
        elif dialect == "postgresql":
            op.execute(f"DROP TRIGGER spectune_{name}_no_truncate ON spectune_{name}")
    if dialect == "postgresql":
        op.execute("DROP FUNCTION spectune_refuse_truncate")


def _same_row(name: str) -> str:
    keys = " AND ".join(f"{column} = NEW.{column}" for column in UNIQUE.get(name, ()))
    return f"id = NEW.id OR ({keys})" if keys else "id = NEW.id"
