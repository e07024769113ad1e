"""The tables of a store: JSON documents beside the columns they are found by.

Names start with `spectune_`, because other programs' tables (Optuna's) may share the database. Devices and models are
replaced by their key; visits and parts are dropped after their profile; every other row is only added. The newest is
the highest id, but of host times the last `created`: a merge brings older ones, for batches and kinds of round that
newer ones lack. Of the `APPEND_ONLY` tables the database refuses changes, except a prune
(`migrations/versions/0003_provenance.py`). A `content_hash` is the sha256 of the row's document, 64 hex digits.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Double, ForeignKey, Index, MetaData, String, Text, text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, declared_attr, mapped_column

from ..sources import content_hash

TABLE_PREFIX = "spectune_"
KEY = String(64)  # hashes, fingerprints, timestamps
NAME = String(120)  # words people choose: roles, regimes, workloads
DOCUMENT = Text().with_variant(LONGTEXT(), "mysql", "mariadb")  # their TEXT ends at 64 KiB
TEMPERATURE_SLACK = 1e-9


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

    @declared_attr.directive
    def __tablename__(cls) -> str:  # noqa: N805  # as SQLAlchemy has it
        return TABLE_PREFIX + re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Table")).lower()

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)
    created: Mapped[str] = mapped_column(KEY, default=utc_now, sort_order=1)


class WithDocument:
    """Columns of rows that are a record as JSON text."""

    document: Mapped[str] = mapped_column(DOCUMENT)


class Hashed(WithDocument):
    """Columns of rows that are found by their text, too."""

    content_hash: Mapped[str] = mapped_column(KEY, default=hash_of_document)


class DeviceTable(WithDocument, Base):
    """One device and its software, found by fingerprint."""

    __table_args__ = (Index(None, "fingerprint", unique=True),)

    fingerprint: Mapped[str] = mapped_column(KEY)
    kind_key: Mapped[str] = mapped_column(KEY)


class ModelTable(WithDocument, Base):
    """One set of weights, found by key."""

    __table_args__ = (Index(None, "key", unique=True),)

    key: Mapped[str] = mapped_column(KEY)


class SurfaceTable(Base):
    """What a group of measurements has in common; the measurements point here."""

    __table_args__ = (Index(None, "device", "model", "role", "regime", "dtype", "attention", unique=True),)

    device: Mapped[str] = mapped_column(KEY)
    model: Mapped[str] = mapped_column(KEY)
    role: Mapped[str] = mapped_column(NAME)
    regime: Mapped[str] = mapped_column(NAME)
    dtype: Mapped[str] = mapped_column(NAME)
    attention: Mapped[str] = mapped_column(NAME, server_default=text("''"))  # "" where it is not known


class MeasurementTable(Hashed, Base):
    """One cell as it was timed once, raw repeats and failures included."""

    __table_args__ = (
        Index("ix_spectune_measurement", "surface_id", "batch", "context_tokens", "tokens"),
        Index("ix_spectune_measurement_hash", "surface_id", "content_hash"),
        Index("ix_spectune_measurement_newest", "surface_id", "id"),
    )

    surface_id: Mapped[int] = mapped_column(ForeignKey(SurfaceTable.id))
    profile_id: Mapped[int | None] = mapped_column(ForeignKey(f"{TABLE_PREFIX}profile.id"))  # None: not timed by one
    batch: Mapped[int]
    context_tokens: Mapped[int]
    tokens: Mapped[int]


class OverheadTable(Hashed, Base):
    """Host time per round of one target on one device."""

    __table_args__ = (
        Index("ix_spectune_overhead", "device", "target", "dtype"),
        Index("ix_spectune_overhead_hash", "content_hash"),
    )

    device: Mapped[str] = mapped_column(KEY)
    target: Mapped[str] = mapped_column(KEY)
    dtype: Mapped[str] = mapped_column(NAME)


class TraceTable(Hashed, Base):
    """What one drafter proposed along one target's own text."""

    __table_args__ = (
        Index("ix_spectune_trace", "target", "workload", "drafter"),
        Index("ix_spectune_trace_hash", "content_hash"),
    )

    target: Mapped[str] = mapped_column(KEY)
    drafter: Mapped[str] = mapped_column(NAME)  # a key, or a name where there are no weights
    workload: Mapped[str] = mapped_column(NAME)
    temperature: Mapped[float] = mapped_column(Double())


class PairwiseTable(Hashed, Base):
    """How often the models of one group agree; whatever their order."""

    __table_args__ = (Index("ix_spectune_pairwise", "names_hash"), Index("ix_spectune_pairwise_hash", "content_hash"))

    names_hash: Mapped[str] = mapped_column(KEY)


class ProfileTable(Base):
    """One profile, begun and perhaps not finished; its key is the caller's hash of what is profiled."""

    __table_args__ = (Index(None, "key"),)

    key: Mapped[str] = mapped_column(KEY)
    state: Mapped[str] = mapped_column(NAME)  # "open", "finished" or "abandoned"


class VisitTable(Base):
    """One timed call of an open profile; the columns are the fields of `profiler.records.visit.Visit`."""

    __table_args__ = (Index(None, "profile_id", "ordinal", unique=True),)

    profile_id: Mapped[int] = mapped_column(ForeignKey(ProfileTable.id))
    ordinal: Mapped[int]
    surface: Mapped[int]
    batch: Mapped[int]
    context_tokens: Mapped[int]
    tokens: Mapped[int]
    purpose: Mapped[str] = mapped_column(NAME)
    round: Mapped[int]
    spent_s: Mapped[float] = mapped_column(Double())
    ms: Mapped[float | None] = mapped_column(Double())
    failure: Mapped[str | None] = mapped_column(DOCUMENT)


class PartTable(WithDocument, Base):
    """One finished part of an open profile, found by its name."""

    __table_args__ = (Index(None, "profile_id", "name", unique=True),)

    profile_id: Mapped[int] = mapped_column(ForeignKey(ProfileTable.id))
    name: Mapped[str] = mapped_column(NAME)


class PlanTable(Hashed, Base):
    """One plan as JSON text with its hash; versions count the plans of one setup from 1."""

    __table_args__ = (
        Index("ix_spectune_plan_device", "device", "target", "workload"),
        Index("ix_spectune_plan_device_kind", "device_kind", "target", "workload"),
    )

    version: Mapped[int]
    device: Mapped[str] = mapped_column(KEY)
    device_kind: Mapped[str] = mapped_column(KEY)
    target: Mapped[str] = mapped_column(KEY)
    workload: Mapped[str] = mapped_column(NAME)
    temperature: Mapped[float] = mapped_column(Double())


class ManifestTable(Hashed, Base):
    """Which cells made a surface that some plan was computed from: its key and the hashes of its measurements."""

    __table_args__ = (Index(None, "content_hash", unique=True),)


class PlanSourceTable(Base):
    """One thing a plan was computed from, by the hash of its document; a surface's is that of its manifest."""

    __table_args__ = (
        Index("ix_spectune_plan_source", "plan_id"),
        Index("ix_spectune_plan_source_hash", "content_hash"),
    )

    plan_id: Mapped[int] = mapped_column(ForeignKey(PlanTable.id))
    kind: Mapped[str] = mapped_column(NAME)  # "surface", "overhead", "trace" or "pairwise"
    content_hash: Mapped[str] = mapped_column(KEY, default=hash_of_document)
    name: Mapped[str] = mapped_column(NAME)  # for people
    is_held: Mapped[bool]  # whether the store held it when the plan was kept


class PlanEventTable(Base):
    """One change of a plan's state; its state is its last event."""

    __table_args__ = (Index(None, "plan_id"),)

    plan_id: Mapped[int] = mapped_column(ForeignKey(PlanTable.id))
    action: Mapped[str] = mapped_column(NAME)  # "promoted", "retired" or "restored"
    by: Mapped[str] = mapped_column(NAME)
    reason: Mapped[str] = mapped_column(DOCUMENT)


class ObservationTable(WithDocument, Base):
    """What a decoder saw while it ran a plan."""

    __table_args__ = (Index(None, "plan_id"),)

    plan_id: Mapped[int] = mapped_column(ForeignKey(PlanTable.id))


class ValidationTable(WithDocument, Base):
    """What a plan delivered when it was measured against its promise."""

    __table_args__ = (Index(None, "plan_id"),)

    plan_id: Mapped[int] = mapped_column(ForeignKey(PlanTable.id))


class WriteTable(Base):
    """One stored transaction by its writer's key: a writer that lost its connection learns here whether it was."""

    __table_args__ = (Index("ix_spectune_write", "key", unique=True), Index("ix_spectune_write_created", "created"))

    key: Mapped[str] = mapped_column(KEY)


class DoorTable(Base):
    """Empty, but inside the transaction of a prune: a row here lets it change the tables of `APPEND_ONLY`."""


APPEND_ONLY = tuple(
    table.__tablename__
    for table in (
        SurfaceTable,
        MeasurementTable,
        OverheadTable,
        TraceTable,
        PairwiseTable,
        PlanTable,
        ManifestTable,
        PlanSourceTable,
        PlanEventTable,
        ObservationTable,
        ValidationTable,
    )
)


def is_temperature(column: InstrumentedAttribute[float], temperature: float) -> ColumnElement[bool]:
    """Compare a stored temperature: within 1e-9 is the same."""
    return column.between(temperature - TEMPERATURE_SLACK, temperature + TEMPERATURE_SLACK)
