"""What a store says about one profile, whether it is still open or not."""

from __future__ import annotations

from sqlalchemy import select

from ..errors import StoreError
from .database import Database
from .tables import ProfileTable


class NoProfileError(StoreError):
    """There is no profile of this number."""


def profile_begun(database: Database, profile_id: int) -> str:
    """Return a profile's begin (UTC, ISO 8601), unique with its number; raise NoProfileError where there is none."""
    found = select(ProfileTable.created).where(ProfileTable.id == profile_id)
    with database._reading() as session:
        begun = session.scalar(found)
    if begun is None:
        raise NoProfileError(f"there is no profile {profile_id} in {database.url}; open one with POST /v1/profiles")
    return begun
