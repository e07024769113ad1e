"""What became of plans over HTTP: observations, validations, and drift."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from ..db.plans import OutcomeTable
from ..db.receipts import Receipt
from ..db.tables import ObservationTable, ValidationTable
from ..db.wire import Added, Document, Page
from ..errors import SpectuneError
from ..planner.plans.document import plan_from_json
from ..planner.plans.observation import Observation
from ..planner.plans.validation import Validation
from ..profiler.records.wire import from_json, readable
from . import examples
from .body import record_of
from .documents import gives, keeps
from .drift import CellDrift, DriftReport, drift_of
from .paging import USUAL_LIMIT, After, Limit, Newest, page_by_id, whole
from .parameters import Number, Once
from .problem import invalid, required
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1/plans/{plan_id}", tags=["outcomes"])

MOST_JUDGED = 10_000  # observations of one plan that drift is looked for in

DRIFT = DriftReport(
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


@router.post("/observations", **keeps(Document, examples.OBSERVED))
async def post_observation(request: Request, plan_id: Number, once: Once = None) -> Response:
    """Keep what a decoder saw while it ran a plan."""
    return await written(request, partial(keep_observation, plan_id))


@router.get("/observations", responses=gives(Page[Document], Page(items=(examples.OBSERVED,))))
async def get_observations(
    request: Request, plan_id: Number, limit: Limit = USUAL_LIMIT, after: After = None, newest: Newest = False
) -> Response:
    """List observations of a plan, oldest first."""
    service = service_of(request)
    if newest:
        return answer_of(await service.read(_newest_observations, service, plan_id, limit))
    return answer_of(await service.read(_documents, service, ObservationTable, plan_id, limit, after or 0))


@router.post("/validations", **keeps(Document, examples.VALIDATED))
async def post_validation(request: Request, plan_id: Number, once: Once = None) -> Response:
    """Keep what a plan delivered when it was measured."""
    return await written(request, partial(keep_validation, plan_id))


@router.get("/validations", responses=gives(Page[Document], Page(items=(examples.VALIDATED,))))
async def get_validations(
    request: Request, plan_id: Number, limit: Limit = USUAL_LIMIT, after: After = None
) -> Response:
    """List validations of a plan, oldest first."""
    service = service_of(request)
    return answer_of(await service.read(_documents, service, ValidationTable, plan_id, limit, after or 0))


@router.get("/drift", responses=gives(DriftReport, DRIFT))
async def get_drift(request: Request, plan_id: Number) -> Response:
    """Compare the speeds of the newest 10,000 observations with the plan's intervals, cell by cell."""
    service = service_of(request)

    def read() -> Receipt:
        plan = plan_from_json(required(service.store.plan, plan_id))
        newest = service.store.newest_observations(plan_id, MOST_JUDGED)
        seen = readable(Observation, newest)
        return receipt_of(drift_of(plan_id, plan, seen, unreadable=len(newest) - len(seen)))

    return answer_of(await service.read(read))


def keep_observation(plan_id: int, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of an observation."""
    text = _checked(Observation, plan_id, body)

    def work() -> Receipt:
        required(service.store.plan_row, plan_id)
        service.store.add_observation(plan_id, text)
        return receipt_of(Added(added=1), 201)

    return work


def keep_validation(plan_id: int, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of a validation."""
    text = _checked(Validation, plan_id, body)

    def work() -> Receipt:
        required(service.store.plan_row, plan_id)
        service.store.add_validation(plan_id, text)
        return receipt_of(Added(added=1), 201)

    return work


def _checked(kind: type[Observation] | type[Validation], plan_id: int, body: bytes) -> str:
    text = record_of(Document, body).document
    try:
        record: Observation | Validation = from_json(kind, text)
    except SpectuneError as error:
        raise invalid(f"the document is refused: {error}") from error
    if record.plan_id != plan_id:
        raise invalid(f"the document is about plan {record.plan_id}, the path says {plan_id}; correct one of them")
    return text


def _newest_observations(service: Service, plan_id: int, limit: int) -> Receipt:
    required(service.store.plan_row, plan_id)
    newest = service.store.newest_observations(plan_id, limit)
    return receipt_of(whole([Document(document=document) for document in newest]), kind=Page[Document])


def _documents(service: Service, table: OutcomeTable, plan_id: int, limit: int, after: int) -> Receipt:
    required(service.store.plan_row, plan_id)
    page = page_by_id(service.store.outcome_rows(table, plan_id, limit + 1, after), limit)
    shown = Page(items=tuple(Document(document=row.document) for row in page.items), next=page.next)
    return receipt_of(shown, kind=Page[Document])
