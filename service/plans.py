"""Plans over HTTP: stored, listed, promoted, retired, restored and rolled back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from ..db.plans import mark_of
from ..db.receipts import Receipt
from ..db.rows import PlanEvent, PlanRow
from ..db.sources import PlanSource
from ..db.wire import Decision, NewPlan, Page, Rollback, is_known
from ..errors import PlanError, RequestError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan
from . import examples
from .body import record_of
from .documents import gives, not_modified, takes
from .measurements import Key, Name
from .paging import USUAL_LIMIT, After, Limit, page_by_id, whole
from .parameters import Hash, KnownTag, Number, Once, OptionalTemperature, Temperature, Word
from .problem import invalid, required
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1/plans", tags=["plans"])

LONGEST_REASON = 2000
LONGEST_NAME = 120
ONE_ROW = gives(PlanRow, examples.PLAN_ROW)
States = Annotated[Literal["kept", "promoted", "retired", "restored"] | None, Query()]


@router.post(
    "",
    status_code=201,
    responses=gives(PlanRow, examples.PLAN_ROW, 201, "Kept."),
    openapi_extra=takes(NewPlan, examples.NEW_PLAN),
)
async def post_plan(request: Request, once: Once = None) -> Response:
    """Keep a plan, byte for byte, and what it was computed from."""
    return await written(request, keep_plan)


@router.get("", responses=gives(Page[PlanRow], Page(items=(examples.PLAN_ROW,))))
async def get_plans(
    request: Request,
    limit: Limit = USUAL_LIMIT,
    after: After = None,
    device: Hash = None,
    device_kind: Hash = None,
    target: Hash = None,
    workload: Word = None,
    temperature: OptionalTemperature = None,
    state: States = None,
) -> Response:
    """List plans, oldest first."""
    service = service_of(request)
    rows = await service.read(
        service.store.plans,
        limit + 1,
        after,
        device=device,
        device_kind=device_kind,
        target=target,
        workload=workload,
        temperature=temperature,
        state=state,
    )
    return answer_of(receipt_of(page_by_id(rows, limit), kind=Page[PlanRow]))


@router.get("/find", responses=ONE_ROW)
async def find_plan(
    request: Request,
    target: Key,
    workload: Name,
    temperature: Temperature = 0.0,
    device: Hash = None,
    device_kind: Hash = None,
) -> Response:
    """Return the plan of a setup that counts, made on exactly this device or on any of this kind."""
    if (device is None) == (device_kind is None):
        raise invalid("give device or device_kind, one of them")
    service = service_of(request)
    setup: dict[str, Any] = {"target": target, "workload": workload, "temperature": temperature}
    row = await service.read(service.store.find_plan, device=device, device_kind=device_kind, **setup)
    return answer_of(receipt_of(row))


@router.post("/rollback", responses=ONE_ROW, openapi_extra=takes(Rollback, examples.ROLLBACK))
async def post_rollback(request: Request, once: Once = None) -> Response:
    """Retire the plan of a setup that counts, and return the one before it, which counts again."""
    return await written(request, _roll_back)


@router.get("/{plan_id}", responses={**gives(dict[str, object], {"version": 2, "cells": []}), **not_modified()})
async def get_plan(request: Request, plan_id: Number, known: KnownTag = None) -> Response:
    """Return a plan byte for byte; its ETag is its content hash."""
    service = service_of(request)
    row = await service.read(required, service.store.plan_row, plan_id)
    tag = f'"{row.content_hash}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_known(known, tag):
        return Response(status_code=304, headers=headers)
    text = await service.read(service.store.plan, plan_id)
    return Response(text, headers=headers, media_type="application/json")


@router.get("/{plan_id}/row", responses=ONE_ROW)
async def get_plan_row(request: Request, plan_id: Number) -> Response:
    """Return what the store says about a plan."""
    service = service_of(request)
    return answer_of(receipt_of(await service.read(required, service.store.plan_row, plan_id)))


@router.get("/{plan_id}/sources", responses=gives(Page[PlanSource], Page(items=(examples.SOURCE,))))
async def get_plan_sources(request: Request, plan_id: Number) -> Response:
    """Return what a plan was computed from."""
    service = service_of(request)
    sources = await service.read(required, service.store.plan_sources, plan_id)
    return answer_of(receipt_of(whole(sources), kind=Page[PlanSource]))


@router.get("/{plan_id}/events", responses=gives(Page[PlanEvent], Page(items=(examples.EVENT,))))
async def get_plan_events(request: Request, plan_id: Number) -> Response:
    """Return what happened to a plan's state, oldest first."""
    service = service_of(request)
    await service.read(required, service.store.plan_row, plan_id)
    events = await service.read(service.store.plan_events, plan_id)
    return answer_of(receipt_of(whole(events), kind=Page[PlanEvent]))


@router.post("/{plan_id}/promote", responses=ONE_ROW, openapi_extra=takes(Decision, examples.DECISION))
async def post_promote(request: Request, plan_id: Number, once: Once = None) -> Response:
    """Let a plan count for its setup from now on."""
    store = service_of(request).store
    return await written(request, partial(_decide, store.promote_plan, plan_id))


@router.post("/{plan_id}/retire", responses=ONE_ROW, openapi_extra=takes(Decision, examples.DECISION))
async def post_retire(request: Request, plan_id: Number, once: Once = None) -> Response:
    """Let a plan count no more."""
    store = service_of(request).store
    return await written(request, partial(_decide, store.retire_plan, plan_id))


@router.post("/{plan_id}/restore", responses=ONE_ROW, openapi_extra=takes(Decision, examples.DECISION))
async def post_restore(request: Request, plan_id: Number, once: Once = None) -> Response:
    """Let a retired plan be one of its setup's again."""
    store = service_of(request).store
    return await written(request, partial(_decide, store.restore_plan, plan_id))


def keep_plan(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of a plan: it must be one, and of the setup it is filed under."""
    sent = record_of(NewPlan, body)
    try:
        plan = plan_from_json(sent.document)
    except (PlanError, ValueError, RecursionError) as error:
        raise invalid(f"the document is no plan: {error}") from error
    _require_filed_rightly(sent, plan)

    def work() -> Receipt:
        plan_id = service.store.add_plan(
            sent.document,
            device=sent.device,
            device_kind=sent.device_kind,
            target=sent.target,
            workload=sent.workload,
            temperature=sent.temperature,
            sources=sent.sources,
        )
        return receipt_of(service.store.plan_row(plan_id), 201)

    return work


def _require_filed_rightly(sent: NewPlan, plan: Plan) -> None:
    prefix = mark_of(sent.device)
    own = {
        "device": f"{prefix}{plan.device.fingerprint}",
        "device_kind": f"{prefix}{plan.device.kind_key}",
        "target": plan.target.key,
        "workload": plan.workload,
        "temperature": plan.temperature,
    }
    wrong = [
        f"{name} {getattr(sent, name)!r}, not {value!r}" for name, value in own.items() if getattr(sent, name) != value
    ]
    if wrong:
        raise RequestError(f"the plan is filed under {'; '.join(wrong)}; file it under what it says itself")


def _decide(decide: Callable[[int, str, str], None], plan_id: int, service: Service, caller: str, body: bytes) -> Work:
    decision = record_of(Decision, body)
    _require_short(decision.by, decision.reason)

    def work() -> Receipt:
        required(service.store.plan_row, plan_id)
        decide(plan_id, decision.by or caller, decision.reason)
        return receipt_of(service.store.plan_row(plan_id))

    return work


def _roll_back(service: Service, caller: str, body: bytes) -> Work:
    asked = record_of(Rollback, body)
    _require_short(asked.by, asked.reason)

    def work() -> Receipt:
        row = service.store.roll_back_plan(
            device=asked.device,
            target=asked.target,
            workload=asked.workload,
            temperature=asked.temperature,
            by=asked.by or caller,
            reason=asked.reason,
        )
        return receipt_of(row)

    return work


def _require_short(by: str, reason: str) -> None:
    if len(by) > LONGEST_NAME or len(reason) > LONGEST_REASON:
        raise invalid(f"at most {LONGEST_NAME} characters for who decides and {LONGEST_REASON} for the reason")
