"""Receipts: a write's answer is stored in its transaction, and returned to a repeated request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ...errors import RequestError
from ..sql.database import Database
from ..sql.service_tables import ReceiptTable
from ..sql.tables import utc_ago

KEPT_DAYS = 45  # a client that was offline delivers what it has kept for up to 30 days


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was answered."""

    status: int
    body: str
    is_repeated: bool = False


class IdempotencyStore:
    """Does every named write of a store at most once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def once(self, key: str, token_name: str, digest: str, work: Callable[[], Receipt]) -> Receipt:
        """Do a write and store its answer, both or neither; or return the answer that it got before.

        A second request with the same key waits for the first. Any token gets the answer, since it may have been
        replaced meanwhile. `digest` is the request's sha256 in hex; RequestError where the key has another. `work` uses
        the same store, in this thread; whatever it raises undoes all of it.
        """
        hashed = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        with self._database.transaction() as session:
            row = ReceiptTable(key=hashed, token_name=token_name, digest=digest, status=0, body="")
            known = session.scalar(select(ReceiptTable).filter_by(key=hashed)) or _claimed(session, row)
            if known is not None:
                return _repeated(known, digest)
            done = work()
            row.status, row.body = done.status, done.body
        return done

    def drop_old(self, days: float = KEPT_DAYS) -> int:
        """Drop receipts that are older than this, and return how many."""
        before = utc_ago(days * 86_400)
        with self._database._writing() as session:
            old = delete(ReceiptTable).where(ReceiptTable.created < before)
            return session.connection().execute(old).rowcount


def _claimed(session: Session, row: ReceiptTable) -> ReceiptTable | None:
    """Write the row; where another transaction has just stored one of the same key, return that one."""
    hashed = row.key
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return session.scalars(select(ReceiptTable).where(ReceiptTable.key == hashed)).one()
    return None


def _repeated(known: ReceiptTable, digest: str) -> Receipt:
    if known.digest != digest:
        raise RequestError("this Idempotency-Key was used for another request; make a new key for every write")
    return Receipt(status=known.status, body=known.body, is_repeated=True)
