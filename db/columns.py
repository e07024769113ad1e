"""What every table of a store has: a number, the moment of writing, and columns of a few kinds."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sqlalchemy import MetaData, String, Text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

TABLE_PREFIX = "spectune_"
KEY = String(64)  # hashes, fingerprints, timestamps
NAME = String(120)  # words people choose: roles, regimes, workloads
DOCUMENT = Text().with_variant(LONGTEXT(), "mysql", "mariadb")  # their TEXT ends at 64 KiB


def utc_now() -> str:
    """Return the present moment in UTC, ISO 8601, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def utc_ago(seconds: float) -> str:
    """Return a moment that has passed, in the form of `utc_now`."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def moment_after(moment: str) -> str:
    """Return the moment a microsecond later; one that cannot be read, as it is."""
    with suppress(ValueError, OverflowError):
        return (datetime.fromisoformat(moment) + timedelta(microseconds=1)).isoformat(timespec="microseconds")
    return moment


def content_hash(document: str) -> str:
    """Return the sha256 of a document's UTF-8 bytes, 64 hex digits."""
    return hashlib.sha256(document.encode()).hexdigest()


def hash_of_document(context: DefaultExecutionContext) -> str:
    """Fill the column of the row that is being written."""
    written = context.current_parameters
    assert written is not None
    return content_hash(written["document"])


class Base(DeclarativeBase):
    """Base of every table: a number that grows and the moment of writing (UTC, ISO 8601)."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s",
        }
    )

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)
    created: Mapped[str] = mapped_column(KEY, default=utc_now, sort_order=1)
