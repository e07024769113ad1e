"""Profiles that can be resumed, and the attention kernel as part of what a surface is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.String(64)
NAME = sa.String(120)
DOCUMENT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
OLD_KEY = ["device", "model", "role", "regime", "dtype"]  # what told surfaces apart before
SURFACE = sa.table("spectune_surface", sa.column("id"), *(sa.column(name) for name in OLD_KEY))
MEASUREMENT = sa.table("spectune_measurement", sa.column("surface_id"))


def upgrade() -> None:
    """Add the column and the tables; surfaces measured before have an unknown attention kernel."""
    op.add_column("spectune_surface", sa.Column("attention", NAME, nullable=False, server_default=""))
    _index_surfaces([*OLD_KEY, "attention"])
    _create("spectune_profile", _column("key", KEY), _column("state", NAME))
    op.create_index("ix_spectune_profile", "spectune_profile", ["key"])
    with op.batch_alter_table("spectune_measurement") as measurements:
        key = sa.ForeignKey("spectune_profile.id", name="fk_spectune_measurement_profile_id")
        measurements.add_column(sa.Column("profile_id", sa.Integer(), key, nullable=True))
    _create_visits()
    _create("spectune_part", _of_profile("spectune_part"), _column("name", NAME), _column("document", DOCUMENT))
    op.create_index("ix_spectune_part", "spectune_part", ["profile_id", "name"], unique=True)


def downgrade() -> None:
    """Forget unfinished profiles, and join the surfaces that differ only in their attention kernel."""
    with op.batch_alter_table("spectune_measurement") as measurements:
        measurements.drop_constraint("fk_spectune_measurement_profile_id", type_="foreignkey")
        measurements.drop_column("profile_id")
    for name in ("spectune_part", "spectune_visit", "spectune_profile"):
        op.drop_table(name)
    _join_surfaces()
    _index_surfaces(OLD_KEY)
    op.drop_column("spectune_surface", "attention")


def _index_surfaces(columns: list[str]) -> None:
    op.drop_index("ix_spectune_surface", "spectune_surface")
    op.create_index("ix_spectune_surface", "spectune_surface", columns, unique=True)


def _create_visits() -> None:
    counts = ("ordinal", "surface", "batch", "context_tokens", "tokens", "round")
    _create(
        "spectune_visit",
        _of_profile("spectune_visit"),
        *(_column(name, sa.Integer()) for name in counts),
        _column("purpose", NAME),
        _column("spent_s", sa.Double()),
        sa.Column("ms", sa.Double()),
        sa.Column("failure", DOCUMENT),
    )
    op.create_index("ix_spectune_visit", "spectune_visit", ["profile_id", "ordinal"], unique=True)


def _join_surfaces() -> None:
    connection = op.get_bind()
    first: dict[tuple[str, ...], int] = {}
    for number, *key in connection.execute(sa.select(SURFACE).order_by(SURFACE.c.id)).all():
        kept = first.setdefault(tuple(key), number)
        if kept != number:
            moved = sa.update(MEASUREMENT).where(MEASUREMENT.c.surface_id == number).values(surface_id=kept)
            connection.execute(moved)
            connection.execute(sa.delete(SURFACE).where(SURFACE.c.id == number))


def _create(name: str, *columns: sa.Column[Any]) -> None:
    number = sa.Column("id", sa.Integer(), primary_key=True)
    op.create_table(name, number, *columns, _column("created", KEY))


def _column(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _of_profile(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("spectune_profile.id", name=f"fk_{table}_profile_id")
    return sa.Column("profile_id", sa.Integer(), key, nullable=False)
