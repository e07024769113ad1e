"""All of a store, one record after the other, as it was at one moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from .database import Database
from .documents import key_of, record_of
from .plans import Action, OutcomeTable
from .provenance import sources_of
from .shared import (
    Shared,
    SharedCell,
    SharedDevice,
    SharedEvent,
    SharedModel,
    SharedOutcome,
    SharedOverhead,
    SharedPairwise,
    SharedPlan,
    SharedSurface,
    SharedTrace,
    indented,
)
from .tables import (
    DeviceTable,
    MeasurementTable,
    ModelTable,
    ObservationTable,
    OverheadTable,
    PairwiseTable,
    PlanEventTable,
    PlanTable,
    SurfaceTable,
    TraceTable,
    ValidationTable,
)

ROWS_AT_ONCE = 100  # traces can be large

Row = TypeVar("Row", DeviceTable, ModelTable, OverheadTable, TraceTable, PairwiseTable, PlanTable)


def everything(database: Database) -> Iterator[Shared]:
    """Yield every device, model, surface, host time, trace, agreement and plan, in this order, oldest first.

    Open profiles, and a service's tokens and jobs, stay out. StoreError names a damaged row.
    """
    with database._reading() as session:
        for device in _rows(session, DeviceTable):
            yield SharedDevice(created=device.created, device=record_of(Device, device, database.url))
        for model in _rows(session, ModelTable):
            yield SharedModel(created=model.created, model=record_of(ModelIdentity, model, database.url))
        for surface in session.scalars(select(SurfaceTable).order_by(SurfaceTable.id)).all():
            yield _surface(session, surface, database.url)
        for time in _rows(session, OverheadTable):
            yield SharedOverhead(created=time.created, overhead=record_of(RoundOverhead, time, database.url))
        for trace in _rows(session, TraceTable):
            yield SharedTrace(created=trace.created, trace=record_of(AcceptanceTrace, trace, database.url))
        for pairwise in _rows(session, PairwiseTable):
            agreement = record_of(PairwiseAcceptance, pairwise, database.url)
            yield SharedPairwise(created=pairwise.created, pairwise=agreement)
        for plan in _rows(session, PlanTable):
            yield _plan(session, plan)


def _rows(session: Session, table: type[Row]) -> Iterator[Row]:
    """Yield the rows of a table by number, some at a time: documents can be large."""
    last = 0
    while rows := session.scalars(select(table).where(table.id > last).order_by(table.id).limit(ROWS_AT_ONCE)).all():
        yield from rows
        last = rows[-1].id
        session.expunge_all()


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
    events = select(PlanEventTable).filter_by(plan_id=row.id).order_by(PlanEventTable.id)
    return SharedPlan(
        created=row.created,
        device=row.device,
        device_kind=row.device_kind,
        target=row.target,
        workload=row.workload,
        temperature=row.temperature,
        content_hash=row.content_hash,
        sources=tuple(sources_of(session, row.id)),
        events=tuple(_event(event) for event in session.scalars(events)),
        observations=_outcomes(session, ObservationTable, row.id),
        validations=_outcomes(session, ValidationTable, row.id),
        plan=value,
        text=row.document if value is None else None,
    )


def _event(row: PlanEventTable) -> SharedEvent:
    action = cast(Action, row.action)  # checked by the record
    return SharedEvent(action=action, by=row.by, reason=row.reason, created=row.created)


def _outcomes(session: Session, table: OutcomeTable, plan_id: int) -> tuple[SharedOutcome, ...]:
    rows = session.execute(select(table.created, table.document).filter_by(plan_id=plan_id).order_by(table.id))
    return tuple(SharedOutcome(created=created, document=document) for created, document in rows)


def _value_of(text: str) -> Any:  # Any: a JSON value
    """Return the JSON value that gives back this very text; None where there is none."""
    try:
        value = json.loads(text)
        return value if indented(value) == text else None
    except (ValueError, RecursionError):
        return None
