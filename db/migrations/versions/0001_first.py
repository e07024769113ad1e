"""The first schema: devices, models, measurements, traces, plans and what became of them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.String(64)
NAME = sa.String(120)
DOCUMENT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
NEWEST_FIRST = (
    "spectune_validation",
    "spectune_observation",
    "spectune_plan",
    "spectune_pairwise",
    "spectune_trace",
    "spectune_overhead",
    "spectune_measurement",
    "spectune_surface",
    "spectune_model",
    "spectune_device",
)


def upgrade() -> None:
    """Create every table."""
    _create_identities()
    _create_measurements()
    _create_traces()
    _create_plans()


def downgrade() -> None:
    """Drop every table."""
    for name in NEWEST_FIRST:
        op.drop_table(name)


def _create_identities() -> None:
    _create("spectune_device", _column("fingerprint", KEY), _column("kind_key", KEY), _column("document", DOCUMENT))
    op.create_index("ix_spectune_device", "spectune_device", ["fingerprint"], unique=True)
    _create("spectune_model", _column("key", KEY), _column("document", DOCUMENT))
    op.create_index("ix_spectune_model", "spectune_model", ["key"], unique=True)


def _create_measurements() -> None:
    surface = {"device": KEY, "model": KEY, "role": NAME, "regime": NAME, "dtype": NAME}
    _create("spectune_surface", *(_column(name, kind) for name, kind in surface.items()))
    op.create_index("ix_spectune_surface", "spectune_surface", list(surface), unique=True)
    cell = ["batch", "context_tokens", "tokens"]
    counts = (_column(name, sa.Integer()) for name in cell)
    _create(
        "spectune_measurement", _reference("spectune_measurement", "surface"), *counts, _column("document", DOCUMENT)
    )
    op.create_index("ix_spectune_measurement", "spectune_measurement", ["surface_id", *cell])
    overhead = {"device": KEY, "target": KEY, "dtype": NAME}
    columns = (_column(name, kind) for name, kind in overhead.items())
    _create("spectune_overhead", *columns, _column("document", DOCUMENT))
    op.create_index("ix_spectune_overhead", "spectune_overhead", list(overhead))


def _create_traces() -> None:
    _create(
        "spectune_trace",
        _column("target", KEY),
        _column("drafter", NAME),
        _column("workload", NAME),
        _column("temperature", sa.Double()),
        _column("document", DOCUMENT),
    )
    op.create_index("ix_spectune_trace", "spectune_trace", ["target", "workload", "drafter"])
    _create("spectune_pairwise", _column("names_hash", KEY), _column("document", DOCUMENT))
    op.create_index("ix_spectune_pairwise", "spectune_pairwise", ["names_hash"])


def _create_plans() -> None:
    _create(
        "spectune_plan",
        _column("version", sa.Integer()),
        _column("device", KEY),
        _column("device_kind", KEY),
        _column("target", KEY),
        _column("workload", NAME),
        _column("temperature", sa.Double()),
        _column("content_hash", KEY),
        _column("document", DOCUMENT),
    )
    op.create_index("ix_spectune_plan_device", "spectune_plan", ["device", "target", "workload"])
    op.create_index("ix_spectune_plan_device_kind", "spectune_plan", ["device_kind", "target", "workload"])
    for name in ("spectune_observation", "spectune_validation"):
        _create(name, _reference(name, "plan"), _column("document", DOCUMENT))
        op.create_index(f"ix_{name}", name, ["plan_id"])


def _create(name: str, *columns: sa.Column[Any]) -> None:
    number = sa.Column("id", sa.Integer(), primary_key=True)
    op.create_table(name, number, *columns, _column("created", KEY))


def _column(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _reference(table: str, to: str) -> sa.Column[int]:
    key = sa.ForeignKey(f"spectune_{to}.id", name=f"fk_{table}_{to}_id")
    return sa.Column(f"{to}_id", sa.Integer(), key, nullable=False)
