"""Turns between writers: what SQLite's single writer gives for nothing, PostgreSQL gives by a lock with a name."""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.orm import Session

ALONE = text("SELECT pg_advisory_xact_lock(:number)")
TOGETHER = text("SELECT pg_advisory_xact_lock_shared(:number)")


def wait_for_turn(session: Session, *names: str, is_shared: bool = False) -> None:
    """Lock these names until the transaction ends; writers of the same names wait, but sharers not for each other."""
    if session.connection().dialect.name == "postgresql":
        digest = hashlib.sha256("\0".join(("spectune", *names)).encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        session.connection().execute(TOGETHER if is_shared else ALONE, {"number": number})
