"""What stores exchange: every row of one as a record of plain JSON, with the moment it was first stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from ...errors import StoreError
from ...profiler.protocols import SurfaceKey
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.overhead import RoundOverhead
from ..rows import key_of
from ..sources import PlanSource, content_hash
from ..sql.database import Database
from ..sql.documents import IDENTITIES, SUPERSEDED, Record, all_rows, columns_of, record_of, rows_of
from ..sql.provenance import sources_of
from ..sql.tables import MeasurementTable, ObservationTable, PlanEventTable, PlanTable, SurfaceTable, ValidationTable

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?\+00:00")

Format = Literal[1]  # raised when what follows changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """What was written down at a moment."""

    created: str  # UTC, ISO 8601

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """What every record but a surface begins with."""

    kind: str
    format: Format = 1
    created: str  # UTC, ISO 8601

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice(SharedRow):
    """One device and its software."""

    kind: Literal["device"] = "device"
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel(SharedRow):
    """One set of weights."""

    kind: Literal["model"] = "model"
    model: ModelIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCell(Dated):
    """One timing of one cell; cells with the same `profile` were timed together, None: added one by one."""

    profile: int | None
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSurface:
    """Every cell ever timed of one surface, oldest first."""

    kind: Literal["surface"] = "surface"
    format: Format = 1
    surface: SurfaceKey
    cells: tuple[SharedCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOverhead(SharedRow):
    """Host time per round of one target on one device."""

    kind: Literal["overhead"] = "overhead"
    overhead: RoundOverhead


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTrace(SharedRow):
    """What one drafter proposed along one target's own text."""

    kind: Literal["trace"] = "trace"
    trace: AcceptanceTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPairwise(SharedRow):
    """How often the models of one group agree."""

    kind: Literal["pairwise"] = "pairwise"
    pairwise: PairwiseAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEvent:
    """One change of a plan's state."""

    action: Literal["promoted", "retired", "restored"]
    by: str
    reason: str
    created: str  # UTC, ISO 8601

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOutcome(Dated):
    """What was seen of a plan, as text."""

    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan(SharedRow):
    """One plan with where it comes from and what became of it.

    Attributes:
        plan: the plan's document, where its text is this value as indented JSON; else None.
        text: the plan's text in all other cases.
    """

    kind: Literal["plan"] = "plan"
    device: str  # Device.fingerprint
    device_kind: str  # Device.kind_key
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    content_hash: str  # sha256 of the text, 64 hex digits
    sources: tuple[PlanSource, ...] = ()
    events: tuple[SharedEvent, ...] = ()
    observations: tuple[SharedOutcome, ...] = ()
    validations: tuple[SharedOutcome, ...] = ()
    plan: Any = None  # Any: a JSON value
    text: str | None = None

    def __post_init__(self) -> None:
        require_moment(self.created)
        if content_hash(self.document) != self.content_hash:
            raise StoreError(
                f"a plan for target {self.target} no longer has its hash {self.content_hash}; export it again"
            )

    @property
    def document(self) -> str:
        """The plan's text, byte for byte."""
        return indented(self.plan) if self.text is None else self.text


Shared = SharedDevice | SharedModel | SharedSurface | SharedOverhead | SharedTrace | SharedPairwise | SharedPlan

KINDS: dict[str, type[Shared]] = {  # in the order in which they are merged: a plan's sources before the plan
    "device": SharedDevice,
    "model": SharedModel,
    "surface": SharedSurface,
    "overhead": SharedOverhead,
    "trace": SharedTrace,
    "pairwise": SharedPairwise,
    "plan": SharedPlan,
}


def indented(value: Any) -> str:  # Any: a JSON value
    """Return a JSON value as plans are written."""
    return json.dumps(value, indent=1)


def require_moment(created: str) -> None:
    """Raise StoreError unless a text is a moment as stores write it."""
    if not MOMENT.fullmatch(created):
        raise StoreError(f"{created[:80]!r} is no moment in UTC like 2026-01-31T12:00:00.000000+00:00")


def everything(database: Database) -> Iterator[Shared]:
    """Yield every device, model, surface, host time, trace, agreement and plan, in this order, oldest first.

    Open profiles, and a service's tokens and jobs, stay out. StoreError names a damaged row.
    """
    with database._reading() as session:
        for name in IDENTITIES:
            yield from _alike(session, name, database.url)
        for surface in session.scalars(select(SurfaceTable).order_by(SurfaceTable.id)).all():
            yield _surface(session, surface, database.url)
        for name in SUPERSEDED:
            yield from _alike(session, name, database.url)
        for plan in all_rows(session, PlanTable):
            yield _plan(session, plan)


def _alike(session: Session, name: str, shown_url: str) -> Iterator[Shared]:
    shared: Any = KINDS[name]
    kind = IDENTITIES.get(name) or SUPERSEDED[name]
    for row in all_rows(session, kind.table):
        yield shared(created=row.created, **{name: record_of(kind.record, row, shown_url)})


def _surface(session: Session, row: SurfaceTable, shown_url: str) -> SharedSurface:
    cells = select(MeasurementTable).filter_by(surface_id=row.id).order_by(MeasurementTable.id)
    return SharedSurface(
        surface=SurfaceKey(**key_of(row)),
        cells=tuple(
            SharedCell(
                created=cell.created, profile=cell.profile_id, measurement=record_of(Measurement, cell, shown_url)
            )
            for cell in session.scalars(cells)
        ),
    )


def _plan(session: Session, row: PlanTable) -> SharedPlan:
    value = _value_of(row.document)
    return SharedPlan(
        **{column.key: getattr(row, column.key) for column in columns_of(PlanTable, SharedPlan)},
        sources=tuple(sources_of(session, row.id)),
        events=_of_plan(session, PlanEventTable, SharedEvent, row.id),
        observations=_of_plan(session, ObservationTable, SharedOutcome, row.id),
        validations=_of_plan(session, ValidationTable, SharedOutcome, row.id),
        plan=value,
        text=row.document if value is None else None,
    )


def _of_plan(session: Session, table: Any, record: type[Record], plan_id: int) -> tuple[Record, ...]:  # Any: a table
    found = select(*columns_of(table, record)).filter_by(plan_id=plan_id).order_by(table.id)
    return tuple(rows_of(session, record, found))


def _value_of(text: str) -> Any:  # Any: a JSON value
    """Return the JSON value that gives back this very text; None where there is none."""
    try:
        value = json.loads(text)
        return value if indented(value) == text else None
    except (ValueError, RecursionError):
        return None
