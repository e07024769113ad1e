"""What plans over HTTP need beyond their methods of the store: checks, ETags, pages of outcomes, and drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from ..db.endpoint import Arguments
from ..db.jobs.receipts import Receipt
from ..db.rows import mark_of
from ..db.sql.plans import OutcomeTable
from ..db.sql.tables import ObservationTable, ValidationTable
from ..db.wire import Decision, Document, NewPlan, Page, Rollback, is_known
from ..errors import PlanError, RequestError, SpectuneError
from ..planner.plans.document import plan_from_json
from ..planner.plans.observation import Observation, moment_of
from ..planner.plans.plan import Plan
from ..planner.plans.promised import own_observations
from ..planner.plans.validation import Validation
from ..profiler.records.wire import from_json, readable
from ..report.site.kept import KeptCell, kept_cells
from ..runtime.watch.drift import Direction
from ..runtime.watch.options import WatchOptions
from .documents import gives
from .parameters import LONGEST_WORD, USUAL_LIMIT, After, KnownTag, Limit, Newest, Number, page_by_id, whole
from .problem import invalid, required
from .state import Service, service_of
from .writes import answer_of, receipt_of

LONGEST_REASON = 2000
MOST_JUDGED = 10_000  # observations of one plan that drift is looked for in
drifts = APIRouter(prefix="/v1/plans/{plan_id}", tags=["outcomes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDrift:
    """One cell: promised and observed tokens/s of all sequences, as at its context; None where no block was seen."""

    batch: int
    context: int
    policy: str
    drafter: str | None
    predicted_tokens_per_s: float
    low: float
    high: float
    blocks: int
    below: int  # blocks slower than low
    above: int  # blocks faster than high
    median_tokens_per_s: float | None
    found: Direction | None  # drift that the test has told


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """All cells of a plan."""

    plan_id: int
    false_alarms: float
    observations: int
    elsewhere: int  # of these, on a device or in a number format that the plan promises nothing about
    unreadable: int  # beside these
    is_drifting: bool
    cells: tuple[CellDrift, ...]


DRIFT = DriftReport(  # for the OpenAPI document
    plan_id=7,
    false_alarms=0.01,
    observations=12,
    elsewhere=0,
    unreadable=0,
    is_drifting=True,
    cells=(
        CellDrift(
            batch=1,
            context=256,
            policy="chain of 4",
            drafter="small",
            predicted_tokens_per_s=190.0,
            low=180.0,
            high=200.0,
            blocks=40,
            below=38,
            above=0,
            median_tokens_per_s=151.3,
            found="slower",
        ),
    ),
)


def drift_of(plan_id: int, plan: Plan, observations: Sequence[Observation], unreadable: int = 0) -> DriftReport:
    """Return what observations say about a plan's promises, judged as the plan's page judges as many."""
    in_order = sorted(observations, key=lambda each: moment_of(each.began))
    cells = tuple(map(_told, kept_cells(plan, [], in_order)))
    return DriftReport(
        plan_id=plan_id,
        false_alarms=WatchOptions().false_alarms,
        observations=len(observations),
        elsewhere=len(observations) - len(own_observations(plan, observations)),
        unreadable=unreadable,
        is_drifting=any(cell.found is not None for cell in cells),
        cells=cells,
    )


def _told(kept: KeptCell) -> CellDrift:
    cell, promise, verdict = kept.cell, kept.cell.prediction, kept.verdict
    return CellDrift(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.code,
        drafter=cell.drafter,
        predicted_tokens_per_s=promise.tokens_per_s,
        low=promise.low,
        high=promise.high,
        blocks=len(kept.blocks),
        below=sum(speed < promise.low for speed in kept.blocks),
        above=sum(speed > promise.high for speed in kept.blocks),
        median_tokens_per_s=kept.measured_speed,
        found=verdict if verdict == "slower" or verdict == "faster" else None,
    )


async def get_plan(request: Request, plan_id: Number, known: KnownTag = None) -> Response:
    """Answer a plan byte for byte."""
    service = service_of(request)
    row = await service.read(required, service.store.plan_row, plan_id)
    tag = f'"{row.content_hash}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if is_known(known, tag):
        return Response(status_code=304, headers=headers)
    text = await service.read(service.store.plan, plan_id)
    return Response(text, headers=headers, media_type="application/json")


async def get_observations(
    request: Request, plan_id: Number, limit: Limit = USUAL_LIMIT, after: After = None, newest: Newest = False
) -> Response:
    """Answer a page of observations."""
    service = service_of(request)
    if newest:
        return answer_of(await service.read(_newest_observations, service, plan_id, limit))
    return answer_of(await service.read(_documents, service, ObservationTable, plan_id, limit, after or 0))


async def get_validations(
    request: Request, plan_id: Number, limit: Limit = USUAL_LIMIT, after: After = None
) -> Response:
    """Answer a page of validations."""
    service = service_of(request)
    return answer_of(await service.read(_documents, service, ValidationTable, plan_id, limit, after or 0))


@drifts.get("/drift", responses=gives(DriftReport, DRIFT))
async def get_drift(request: Request, plan_id: Number) -> Response:
    """Compare the speeds of the newest 10,000 observations with the plan's intervals, cell by cell."""
    service = service_of(request)

    def read() -> Receipt:
        plan = plan_from_json(required(service.store.plan, plan_id))
        newest = service.store.newest_observations(plan_id, MOST_JUDGED)
        seen = readable(Observation, newest)
        return receipt_of(drift_of(plan_id, plan, seen, unreadable=len(newest) - len(seen)))

    return answer_of(await service.read(read))


def _newest_observations(service: Service, plan_id: int, limit: int) -> Receipt:
    required(service.store.plan_row, plan_id)
    newest = service.store.newest_observations(plan_id, limit)
    return receipt_of(whole([Document(document=document) for document in newest]), kind=Page[Document])


def _documents(service: Service, table: OutcomeTable, plan_id: int, limit: int, after: int) -> Receipt:
    required(service.store.plan_row, plan_id)
    page = page_by_id(service.store.outcome_rows(table, plan_id, limit + 1, after), limit)
    shown = Page(items=tuple(Document(document=row.document) for row in page.items), next=page.next)
    return receipt_of(shown, kind=Page[Document])


def _require_filed_rightly(_method: str, sent: NewPlan, _place: Arguments) -> None:
    """Refuse what is no plan, or of another setup than it is filed under."""
    try:
        plan = plan_from_json(sent.document)
    except (PlanError, ValueError, RecursionError) as error:
        raise invalid(f"the document is no plan: {error}") from error
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


def _require_short(_method: str, sent: Decision | Rollback, _place: Arguments) -> None:
    if len(sent.by) > LONGEST_WORD or len(sent.reason) > LONGEST_REASON:
        raise invalid(f"at most {LONGEST_WORD} characters for who decides and {LONGEST_REASON} for the reason")


def _require_outcome(method: str, sent: Document, place: Arguments) -> None:
    kind: type[Observation] | type[Validation] = Observation if method == "add_observation" else Validation
    try:
        record: Observation | Validation = from_json(kind, sent.document)
    except SpectuneError as error:
        raise invalid(f"the document is refused: {error}") from error
    if record.plan_id != place["plan_id"]:
        told = f"the document is about plan {record.plan_id}, the path says {place['plan_id']}; correct one of them"
        raise invalid(told)


CHECKS: dict[type, Callable[[str, Any, Arguments], None]] = {  # of what is sent; Any: the key's class
    NewPlan: _require_filed_rightly,
    Decision: _require_short,
    Rollback: _require_short,
    Document: _require_outcome,
}
