"""The tables of the planner service, in the same database as what it serves: tokens, jobs, receipts and uploads."""

from __future__ import annotations

from sqlalchemy import Double, ForeignKey, Index, LargeBinary
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.orm import Mapped, mapped_column

from .tables import DOCUMENT, KEY, NAME, Base, PlanTable

__all__ = ["Base", "JobTable", "ReceiptTable", "TokenTable", "UploadPartTable", "UploadTable"]

BYTES = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")  # their BLOB ends at 64 KiB


class TokenTable(Base):
    """One token that lets its bearer in: only the hash of it is known."""

    __table_args__ = (
        Index("ix_spectune_token", "name", unique=True),
        Index("ix_spectune_token_hash", "hash", unique=True),
    )

    name: Mapped[str] = mapped_column(NAME)
    hash: Mapped[str] = mapped_column(KEY)  # sha256 of the token, 64 hex digits
    scope: Mapped[str] = mapped_column(NAME)  # "read", "write" or "admin"
    expires: Mapped[str | None] = mapped_column(KEY)
    revoked: Mapped[str | None] = mapped_column(KEY)


class JobTable(Base):
    """One job and how far it is; `worker` and `heartbeat` say who holds it, and since when nothing was heard."""

    __table_args__ = (Index("ix_spectune_job", "key", unique=True), Index("ix_spectune_job_state", "state"))

    key: Mapped[str] = mapped_column(KEY)
    kind: Mapped[str] = mapped_column(NAME)  # "plan"
    state: Mapped[str] = mapped_column(NAME)  # "waiting", "running", "done", "failed" or "cancelled"
    request: Mapped[str] = mapped_column(DOCUMENT, deferred=True)  # may be long, and heartbeats do not read it
    token_name: Mapped[str] = mapped_column(NAME)  # whose token started it
    progress: Mapped[float] = mapped_column(Double())
    note: Mapped[str] = mapped_column(DOCUMENT)  # what is being done
    plan_id: Mapped[int | None] = mapped_column(ForeignKey(PlanTable.id))
    error: Mapped[str | None] = mapped_column(DOCUMENT)
    heartbeat: Mapped[str | None] = mapped_column(KEY)
    attempts: Mapped[int]
    worker: Mapped[str | None] = mapped_column(NAME)


class ReceiptTable(Base):
    """What was answered to a write that named an idempotency key, so that a second one is answered the same."""

    __table_args__ = (Index("ix_spectune_receipt", "key", unique=True), Index("ix_spectune_receipt_created", "created"))

    key: Mapped[str] = mapped_column(KEY)  # hash of the write's own: of the whole service, not of a token
    token_name: Mapped[str] = mapped_column(NAME)
    digest: Mapped[str] = mapped_column(KEY)  # of the whole request
    status: Mapped[int]
    body: Mapped[str] = mapped_column(DOCUMENT)


class UploadTable(Base):
    """One body that comes in parts; the parts are dropped when it ends."""

    __table_args__ = (Index("ix_spectune_upload", "key", unique=True),)

    key: Mapped[str] = mapped_column(KEY)
    token_name: Mapped[str] = mapped_column(NAME)
    kind: Mapped[str] = mapped_column(NAME)
    target: Mapped[str] = mapped_column(DOCUMENT)  # method and path of the request it stands for
    size: Mapped[int]  # bytes, of all parts
    sha256: Mapped[str] = mapped_column(KEY)
    received: Mapped[int]  # bytes so far
    touched: Mapped[str] = mapped_column(KEY)  # when the last part came
    ended: Mapped[str | None] = mapped_column(KEY)


class UploadPartTable(Base):
    """Bytes of an upload from a position on."""

    __table_args__ = (Index("ix_spectune_upload_part", "upload_id", "position", unique=True),)

    upload_id: Mapped[int] = mapped_column(ForeignKey(UploadTable.id))
    position: Mapped[int]
    content: Mapped[bytes] = mapped_column(BYTES)
