"""Bodies that come in parts: each part is stored before it is acknowledged, the whole is checked before use."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from ...errors import RequestError, StoreError
from ..sql.database import Database
from ..sql.documents import seen_as
from ..sql.service_tables import UploadPartTable, UploadTable
from ..sql.tables import utc_ago, utc_now

SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_BYTES = 2**30
KEPT_HOURS = 24  # after the last part came
IDLE_MINUTES = 10  # without a part: its sender has given up long ago, and it makes room for another
WAITING_MINUTES = 60  # of one that is all there: until then it may wait for its turn to be finished


class NoUploadError(StoreError):
    """There is no upload of this key, or it has ended."""


class TooManyUploadsError(StoreError):
    """A token has as many uploads under way as it may."""


class UploadConflictError(StoreError):
    """A part does not begin where the parts before it end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRow:
    """What a store says about one upload."""

    key: str
    token_name: str
    kind: str
    target: str  # method and path of the request it stands for
    size: int  # bytes
    sha256: str
    received: int  # bytes
    ended: str | None  # UTC, ISO 8601


class Uploads:
    """The uploads of one store, each seen only by the token that began it."""

    def __init__(self, database: Database, most_bytes: int = LARGEST_BYTES, most_open: int = 16) -> None:
        """Take the database; an upload has at most `most_bytes`, a token at most `most_open` unfinished ones."""
        self._database, self._most_bytes, self._most_open = database, most_bytes, most_open

    def begin(self, token_name: str, *, kind: str, target: str, size: int, sha256: str) -> UploadRow:
        """Announce an upload and return its row, with its key.

        With `most_open` open, the one idle for longest ends, if it got nothing for ten minutes, or an hour if complete.
        RequestError: the size or the hash is impossible. TooManyUploadsError: too many are under way.
        """
        if not 0 < size <= self._most_bytes:
            raise RequestError(f"an upload has 1 to {self._most_bytes} bytes, got {size}; send less at once")
        if not SHA256.fullmatch(sha256):
            raise RequestError(f"sha256 must be 64 lower-case hex digits, got {sha256!r}")
        row = UploadTable(key=secrets.token_hex(16), token_name=token_name, kind=kind, target=target, size=size)
        row.sha256, row.received, row.touched = sha256, 0, utc_now()
        is_open = (UploadTable.token_name == token_name) & UploadTable.ended.is_(None)
        with self._database._writing() as session:
            count = session.scalar(select(func.count(UploadTable.id)).where(is_open)) or 0
            if count >= self._most_open:
                idle = select(UploadTable).where(is_open, _is_left()).order_by(UploadTable.touched).limit(1)
                oldest = session.scalar(idle.with_for_update(skip_locked=True))
                if oldest is None:
                    raise TooManyUploadsError(f"{count} uploads are under way already; finish some of them first")
                _end(session, oldest)
            session.add(row)
            session.flush()
            return seen_as(UploadRow, row)

    def find(self, token_name: str, key: str) -> UploadRow:
        """Return one upload, or raise NoUploadError."""
        with self._database._reading() as session:
            return seen_as(UploadRow, _existing(session, token_name, key, is_held=False))

    def add(self, token_name: str, key: str, position: int, content: bytes) -> UploadRow:
        """Store the next bytes and return the upload; NoUploadError where it is missing or ended.

        UploadConflictError: the position is not where the bytes so far end. RequestError: more than were announced.
        """
        with self._database._writing() as session:
            row = _open(session, token_name, key)
            if position != row.received:
                raise UploadConflictError(f"byte {row.received} comes next, got byte {position}; go on from there")
            if position + len(content) > row.size:
                raise RequestError(f"{row.size} bytes were announced, these reach {position + len(content)}")
            if content:
                session.add(UploadPartTable(upload_id=row.id, position=position, content=content))
            row.received += len(content)
            row.touched = utc_now()
            session.flush()
            return seen_as(UploadRow, row)

    def content(self, token_name: str, key: str) -> bytes:
        """Return all bytes of a complete upload; NoUploadError where it is missing or ended.

        UploadConflictError: bytes are missing. RequestError: they are not those announced; a new upload is needed.
        """
        with self._database._reading() as session:
            row = _open(session, token_name, key, is_held=False)
            if row.received < row.size:
                raise UploadConflictError(f"{row.received} of {row.size} bytes are here; send the rest first")
            whole = BytesIO()  # its value is no copy
            digest = hashlib.sha256()
            for part in _parts(session, row.id):
                digest.update(part)
                whole.write(part)
            if whole.tell() != row.size or digest.hexdigest() != row.sha256:
                raise RequestError(f"the bytes have sha256 {digest.hexdigest()}, not the announced {row.sha256}")
            return whole.getvalue()

    def end(self, token_name: str, key: str) -> None:
        """Drop an upload's bytes and close it; raise NoUploadError where it is missing or ended."""
        with self._database._writing() as session:
            _end(session, _open(session, token_name, key))

    def drop_old(self, hours: float = KEPT_HOURS) -> int:
        """Forget uploads to which nothing was added for so long, and return how many."""
        with self._database._writing() as session:
            is_old = UploadTable.touched < utc_ago(hours * 3600)
            numbers = session.scalars(select(UploadTable.id).where(is_old)).all()
            for number in numbers:
                _drop_parts(session, number)
                session.execute(delete(UploadTable).where(UploadTable.id == number))
            return len(numbers)


def _is_left() -> ColumnElement[bool]:
    is_partial = UploadTable.received < UploadTable.size
    is_idle = UploadTable.touched < utc_ago(IDLE_MINUTES * 60)
    return (is_partial & is_idle) | (UploadTable.touched < utc_ago(WAITING_MINUTES * 60))


def _existing(session: Session, token_name: str, key: str, *, is_held: bool = True) -> UploadTable:
    found = select(UploadTable).filter_by(key=key, token_name=token_name)
    row = session.scalar(found.with_for_update() if is_held else found)
    if row is None:
        raise NoUploadError(f"there is no upload {key[:64]!r}; begin one with POST /v1/uploads")
    return row


def _open(session: Session, token_name: str, key: str, *, is_held: bool = True) -> UploadTable:
    row = _existing(session, token_name, key, is_held=is_held)
    if row.ended is not None:
        raise NoUploadError(f"upload {key!r} ended at {row.ended}; begin a new one")
    return row


def _parts(session: Session, upload_id: int) -> Iterator[bytes]:
    found = select(UploadPartTable.content).filter_by(upload_id=upload_id).order_by(UploadPartTable.position)
    yield from session.scalars(found.execution_options(yield_per=8))


def _end(session: Session, row: UploadTable) -> None:
    row.ended = utc_now()
    _drop_parts(session, row.id)


def _drop_parts(session: Session, upload_id: int) -> None:
    session.execute(delete(UploadPartTable).where(UploadPartTable.upload_id == upload_id))
