"""Measurements, surfaces and host times over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ..db.receipts import Receipt
from ..db.rows import SurfaceRow
from ..db.wire import TOO_MANY_TIMINGS, Added, NewMeasurements, Page
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from . import examples
from .body import record_of
from .documents import gives, keeps
from .paging import USUAL_LIMIT, After, Limit, page_by_id, whole
from .parameters import Hash, Once, Word
from .problem import ProblemError, not_found
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1", tags=["measurements"])

MOST_TIMINGS = 200_000  # of the surfaces that one request reads
Key = Annotated[str, Query(min_length=1, max_length=80)]
Name = Annotated[str, Query(min_length=1, max_length=120)]


@router.post("/measurements", **keeps(NewMeasurements, examples.MEASUREMENTS))
async def post_measurements(request: Request, once: Once = None) -> Response:
    """Add cells of one surface; all of them are kept, or none."""
    return await written(request, keep_measurements)


@router.get("/surfaces/rows", responses=gives(Page[SurfaceRow], Page(items=(examples.SURFACE_ROW,))))
async def get_surface_rows(
    request: Request, limit: Limit = USUAL_LIMIT, after: After = None, device: Hash = None
) -> Response:
    """List surfaces without their timings, in the order they were first measured, and how many each has."""
    service = service_of(request)
    rows = await service.read(service.store.surface_rows, limit + 1, after, device=device)
    return answer_of(receipt_of(page_by_id(rows, limit), kind=Page[SurfaceRow]))


@router.get("/surfaces", responses=gives(Page[LatencySurface], Page(items=(examples.SURFACE,))))
async def get_surfaces(
    request: Request,
    device: Hash = None,
    model: Hash = None,
    dtype: Word = None,
    role: Word = None,
    regime: Word = None,
    attention: Word = None,
) -> Response:
    """Return surfaces with the cells that count; all at once, so name what is wanted: 422 where it is too much."""
    service = service_of(request)
    further = {"role": role, "regime": regime, "attention": attention}

    def read() -> Receipt:
        timings = service.store.timings_of(device=device, model=model, dtype=dtype, **further)
        if timings > MOST_TIMINGS:
            told = (
                f"these surfaces have {timings} timings, more than {MOST_TIMINGS}; name device, model, dtype and role"
            )
            raise ProblemError(422, TOO_MANY_TIMINGS, told)
        surfaces = service.store.surfaces(device, model, dtype, **further)
        return receipt_of(whole(surfaces), kind=Page[LatencySurface])

    return answer_of(await service.read(read))


@router.post("/overheads", **keeps(RoundOverhead, examples.OVERHEAD))
async def post_overhead(request: Request, once: Once = None) -> Response:
    """Add host times of one target on one device."""
    return await written(request, keep_overhead)


@router.get("/overheads", responses=gives(RoundOverhead, examples.OVERHEAD))
async def get_overhead(request: Request, device: Key, target: Key, dtype: Name, regime: Word = None) -> Response:
    """Return the newest host times of a target on a device, of rounds that run as in a regime where one is named."""
    service = service_of(request)
    overhead = await service.read(service.store.overhead, device, target, dtype, regime)
    if overhead is None:
        raise not_found(f"the host time of {target} on {device} in {dtype} was never measured; run: spectune profile")
    return answer_of(receipt_of(overhead))


@router.get("/overheads/records", responses=gives(Page[RoundOverhead], Page(items=(examples.OVERHEAD,))))
async def get_overhead_records(
    request: Request, device: Key, target: Key, dtype: Name, regime: Word = None
) -> Response:
    """Return the records that the newest host times are joined from, newest first; none where nothing was measured."""
    service = service_of(request)
    times = await service.read(service.store.host_times, device, target, dtype, regime)
    return answer_of(receipt_of(whole(times), kind=Page[RoundOverhead]))


def keep_measurements(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of measurements."""
    sent = record_of(NewMeasurements, body)

    def work() -> Receipt:
        service.store.add_measurements(sent.surface, sent.measurements)
        return receipt_of(Added(added=len(sent.measurements)), 201)

    return work


def keep_overhead(service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of host times."""
    overhead = record_of(RoundOverhead, body)

    def work() -> Receipt:
        service.store.add_overhead(overhead)
        return receipt_of(Added(added=1), 201)

    return work
