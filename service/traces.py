"""Traces, agreement between models, and records from files, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from ..db.receipts import Receipt
from ..db.rows import RecordPlaces, Records, TraceRow
from ..db.wire import Added, Page
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from . import examples
from .body import record_of
from .documents import gives, keeps, takes
from .measurements import Key, Name
from .paging import USUAL_LIMIT, After, Limit, page_by_id, whole
from .parameters import Hash, Number, Once, OptionalTemperature, Temperature, Word
from .problem import not_found, required
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1", tags=["traces and records"])

Names = Annotated[
    list[Annotated[str, Query(min_length=1, max_length=120)]], Query(alias="model", min_length=1, max_length=64)
]


@router.post("/traces", **keeps(AcceptanceTrace, examples.TRACE))
async def post_trace(request: Request, once: Once = None) -> Response:
    """Add one drafter's recording."""
    return await written(request, keep_trace)


@router.get("/traces", responses=gives(Page[AcceptanceTrace], Page(items=(examples.TRACE,))))
async def get_traces(request: Request, target: Key, workload: Name, temperature: Temperature = 0.0) -> Response:
    """Return the newest trace of every drafter of a setup."""
    service = service_of(request)

    def read() -> Receipt:
        return receipt_of(whole(service.store.traces(target, workload, temperature)), kind=Page[AcceptanceTrace])

    return answer_of(await service.read(read))


@router.get("/traces/rows", responses=gives(Page[TraceRow], Page(items=(examples.TRACE_ROW,))))
async def get_trace_rows(request: Request, limit: Limit = USUAL_LIMIT, after: After = None) -> Response:
    """List traces without their recordings, oldest first."""
    service = service_of(request)
    rows = await service.read(service.store.trace_rows, limit + 1, after)
    return answer_of(receipt_of(page_by_id(rows, limit), kind=Page[TraceRow]))


@router.get("/traces/{trace_id}", responses=gives(AcceptanceTrace, examples.TRACE))
async def get_trace(request: Request, trace_id: Number) -> Response:
    """Return one trace."""
    service = service_of(request)

    def read() -> Receipt:
        return receipt_of(required(service.store.trace, trace_id))

    return answer_of(await service.read(read))


@router.post("/pairwise", **keeps(PairwiseAcceptance, examples.PAIRWISE))
async def post_pairwise(request: Request, once: Once = None) -> Response:
    """Add how often the models of one group agree."""
    return await written(request, keep_pairwise)


@router.get("/pairwise", responses=gives(PairwiseAcceptance, examples.PAIRWISE))
async def get_pairwise(
    request: Request,
    models: Names,
    target: Hash = None,
    workload: Word = None,
    temperature: OptionalTemperature = None,
) -> Response:
    """Return the newest agreement of exactly these models, each named by `model=`; along the texts that are named."""
    service = service_of(request)
    along: dict[str, Any] = {"target": target, "workload": workload, "temperature": temperature}
    pairwise = await service.read(service.store.pairwise, models, **along)
    if pairwise is None:
        raise not_found(f"how these {len(models)} models agree is not known; run: spectune profile")
    return answer_of(receipt_of(pairwise))


@router.post(
    "/records/missing",
    responses=gives(RecordPlaces, examples.RECORD_PLACES),
    openapi_extra=takes(Records, examples.RECORDS),
)
async def post_missing(request: Request, once: Once = None) -> Response:
    """Return the places of those of these records that the store does not hold; nothing is kept."""
    return await written(request, tell_missing)


@router.post(
    "/records",
    status_code=201,
    responses=gives(RecordPlaces, examples.RECORD_PLACES, 201, "Where what was new is; it is kept now."),
    openapi_extra=takes(Records, examples.RECORDS),
)
async def post_records(request: Request, once: Once = None) -> Response:
    """Keep what the store does not hold yet of these records, and return the places of it among them."""
    return await written(request, keep_records)


def keep_trace(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of a trace."""
    trace = record_of(AcceptanceTrace, body)

    def work() -> Receipt:
        service.store.add_trace(trace)
        return receipt_of(Added(added=1), 201)

    return work


def keep_pairwise(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of an agreement."""
    pairwise = record_of(PairwiseAcceptance, body)

    def work() -> Receipt:
        service.store.add_pairwise(pairwise)
        return receipt_of(Added(added=1), 201)

    return work


def tell_missing(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a question which records are new."""
    records = record_of(Records, body)
    return lambda: receipt_of(service.store.missing_places(records))


def keep_records(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of records from files."""
    records = record_of(Records, body)
    return lambda: receipt_of(service.store.keep_records(records), 201)
