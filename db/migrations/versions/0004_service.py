"""What the planner service keeps: tokens, jobs, receipts and uploads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEY = sa.String(64)
NAME = sa.String(120)
DOCUMENT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
TABLES = ("upload_part", "upload", "receipt", "job", "token")


def upgrade() -> None:
    """Create the tables; nothing that is there changes."""
    _create_token()
    _create_job()
    _create_receipt()
    _create_upload()


def downgrade() -> None:
    """Forget tokens, jobs, receipts and unfinished uploads; what jobs and uploads brought into the store stays."""
    for name in TABLES:
        op.drop_table(f"spectune_{name}")


def _create_token() -> None:
    columns = {"name": NAME, "hash": KEY, "scope": NAME}
    _create("spectune_token", *_columns(columns), _or_null("expires", KEY), _or_null("revoked", KEY))
    op.create_index("ix_spectune_token", "spectune_token", ["name"], unique=True)
    op.create_index("ix_spectune_token_hash", "spectune_token", ["hash"], unique=True)


def _create_job() -> None:
    columns = {"key": KEY, "kind": NAME, "state": NAME, "request": DOCUMENT, "token_name": NAME}
    key = sa.ForeignKey("spectune_plan.id", name="fk_spectune_job_plan_id")
    _create(
        "spectune_job",
        *_columns({**columns, "progress": sa.Double(), "note": DOCUMENT}),
        sa.Column("plan_id", sa.Integer(), key, nullable=True),
        _or_null("error", DOCUMENT),
        _or_null("heartbeat", KEY),
        *_columns({"attempts": sa.Integer()}),
        _or_null("worker", NAME),
    )
    op.create_index("ix_spectune_job", "spectune_job", ["key"], unique=True)
    op.create_index("ix_spectune_job_state", "spectune_job", ["state"])


def _create_receipt() -> None:
    columns = {"key": KEY, "token_name": NAME, "digest": KEY, "status": sa.Integer(), "body": DOCUMENT}
    _create("spectune_receipt", *_columns(columns))
    op.create_index("ix_spectune_receipt", "spectune_receipt", ["key"], unique=True)
    op.create_index("ix_spectune_receipt_created", "spectune_receipt", ["created"])


def _create_upload() -> None:
    words = {"key": KEY, "token_name": NAME, "kind": NAME, "target": DOCUMENT, "size": sa.Integer(), "sha256": KEY}
    columns = {**words, "received": sa.Integer(), "touched": KEY}
    _create("spectune_upload", *_columns(columns), _or_null("ended", KEY))
    op.create_index("ix_spectune_upload", "spectune_upload", ["key"], unique=True)
    key = sa.ForeignKey("spectune_upload.id", name="fk_spectune_upload_part_upload_id")
    reference = sa.Column("upload_id", sa.Integer(), key, nullable=False)
    _create("spectune_upload_part", reference, *_columns({"position": sa.Integer(), "content": BYTES}))
    op.create_index("ix_spectune_upload_part", "spectune_upload_part", ["upload_id", "position"], unique=True)


def _create(name: str, *columns: sa.Column[Any]) -> None:
    number = sa.Column("id", sa.Integer(), primary_key=True)
    op.create_table(name, number, *columns, sa.Column("created", KEY, nullable=False))


def _columns(kinds: Mapping[str, Any]) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _or_null(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)
