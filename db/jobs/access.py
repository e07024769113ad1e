"""Who may do what: tokens, of which the store knows nothing but a hash."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from sqlalchemy import func, select

from ...errors import RequestError, StoreError
from ..sql.database import Database
from ..sql.documents import columns_of, rows_of
from ..sql.service_tables import TokenTable
from ..sql.tables import utc_now

Scope = Literal["read", "write", "admin"]

SCOPES: tuple[Scope, ...] = get_args(Scope)  # each holds those before it
PREFIX = "spt_"  # so that a token is known for one wherever it turns up
RANDOM_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """What a store says about one token; times are UTC, ISO 8601."""

    id: int
    name: str
    hash: str  # sha256 of the token, 64 hex digits
    scope: str
    created: str
    expires: str | None
    revoked: str | None

    def holds_at(self, moment: str) -> bool:
        """Whether it lets its bearer in at a moment."""
        return self.revoked is None and (self.expires is None or moment < self.expires)

    def allows(self, scope: Scope) -> bool:
        """Whether it is enough for what needs this scope."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class Tokens:
    """The tokens of one store; they are made and revoked here, and never shown a second time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scope: Scope, expires: datetime | None = None) -> str:
        """Store a new token and return it, the only time that it is known; `expires` None is never.

        RequestError: no name, no scope, or an expiry in the past. StoreError: the name is taken (revoked: still).
        """
        until = _moment(expires)
        if not NAME.fullmatch(name):
            raise RequestError(f"{name!r} is no name for a token; use up to 64 letters, digits and . _ @ -")
        if scope not in SCOPES:
            raise RequestError(f"a token's scope is one of {', '.join(SCOPES)}, got {scope!r}")
        if until is not None and until <= utc_now():
            raise RequestError(f"the token would expire at {until}, which is over; choose a later time")
        token = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        with self._database._writing() as session:
            if session.scalar(select(TokenTable.id).where(TokenTable.name == name)) is not None:
                raise StoreError(f"a token {name!r} is already there in {self._database.url}; choose another name")
            session.add(TokenTable(name=name, hash=token_hash(token), scope=scope, expires=until))
        return token

    def revoke(self, name: str) -> None:
        """Refuse a token from now on, also where it is revoked already; raise StoreError where there is none."""
        with self._database._writing() as session:
            row = session.scalar(select(TokenTable).where(TokenTable.name == name))
            if row is None:
                raise StoreError(f"there is no token {name!r} in {self._database.url}; see: spectune token list")
            row.revoked = row.revoked or utc_now()

    def rows(self) -> list[TokenRow]:
        """Return what is known about every token, oldest first."""
        found = select(*columns_of(TokenTable, TokenRow)).order_by(TokenTable.id)
        with self._database._reading() as session:  # at once: whoever waits to be let in does not wait for a database
            return rows_of(session, TokenRow, found)

    def find(self, hashed: str) -> TokenRow | None:
        """Return the token of a hash, whether it still holds or not; None where there is none."""
        found = select(*columns_of(TokenTable, TokenRow)).where(TokenTable.hash == hashed)
        return next(iter(self._database._rows(TokenRow, found)), None)

    def are_there(self) -> bool:
        """Whether any token was ever made, one that is revoked or expired included."""
        return bool(self._database._read(lambda session: session.scalar(select(func.count(TokenTable.id)))))


def token_hash(token: str) -> str:
    """Return what a store keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _moment(expires: datetime | None) -> str | None:
    """Return a time as the tables write it; one without a zone is taken for UTC."""
    if expires is None:
        return None
    aware = expires if expires.tzinfo is not None else expires.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")
