"""Planning jobs over HTTP: started, followed and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..db.jobs.jobs import ENDED, JobRow, JobTold
from ..db.jobs.receipts import Receipt
from ..db.sql.documents import seen_as
from ..db.wire import Page
from ..planner.plans.objective import LatencyBound
from ..planner.records.frozen_table import FrozenTable
from ..planner.search.options import SearchOptions
from ..profiler.records.device import AUTO_DTYPE, Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.wire import to_json
from . import examples
from .body import record_of
from .callers import token_of
from .documents import gives, gives_text, takes
from .parameters import USUAL_LIMIT, After, KeyPath, Limit, page_by_id
from .problem import ProblemError, conflict, invalid
from .routes import writes
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

EVENTS = "text/event-stream"
LOOK_S = 0.5  # between looks at a job that is followed
ALIVE_S = 15.0  # a silent stream says that it is still there
MOST_JOBS = 1000  # of everybody, that wait
MOST_TRIALS = 10_000
MOST_TABLES = 4
MOST_CELLS = 1000
State = Literal["waiting", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
States = Annotated[State | None, Query()]
TOLD = JobTold(
    id=1,
    key="6f1c0d4e5a7b8c9d6f1c0d4e5a7b8c9d",
    kind="plan",
    state="running",
    progress=0.5,
    note="solved 2 of 4 parts of the plan",
    plan_id=None,
    error=None,
    attempts=1,
    created=examples.MOMENT,
    heartbeat=examples.MOMENT,
    token_name="ci",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWanted:
    """What `tuning.request.PlanRequest` takes but nothing lossy; device and target may be named as the store does.

    A test holds the fields of both to be the same. This one exists because the other brings everything that plans
    with it, which a server must not load.
    """

    target: ModelIdentity | str  # or ModelIdentity.key
    device: Device | str  # or Device.fingerprint
    dtype: str = AUTO_DTYPE
    workload: str = "default"
    temperature: float = 0.0
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    regime: str = ""
    seed: int = 0
    trials: int = SearchOptions().trials
    bound: LatencyBound | None = None
    new_tokens: int | None = None
    cached_share: float = 0.0
    max_memory_bytes: int | None = None
    tables: tuple[FrozenTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be started."""

    kind: Literal["plan"]
    request: PlanWanted


WANTED = NewJob(kind="plan", request=PlanWanted(target=examples.MODEL.key, device=examples.DEVICE.fingerprint))


@writes(
    router,
    "POST",
    "",
    status_code=202,
    responses=gives(JobTold, replace(TOLD, state="waiting", progress=0.0), 202, "It waits for a worker."),
    **takes(NewJob, WANTED),
)
def post_job(service: Service, caller: str, body: bytes) -> Work:
    """Start planning from what the store holds."""
    if not service.store.is_shared:
        raise conflict("a store in memory has no jobs, which run in processes of their own; serve a file or a server")
    job = record_of(NewJob, body)
    wanted = _with_records(service, job.request)
    _require_bounded(wanted)

    def work() -> Receipt:
        _require_few(service)
        return receipt_of(seen_as(JobTold, service.jobs.add(job.kind, to_json(wanted), caller)), 202)

    return work


@router.get("", responses=gives(Page[JobTold], Page(items=(TOLD,))))
async def get_jobs(request: Request, limit: Limit = USUAL_LIMIT, after: After = None, state: States = None) -> Response:
    """List jobs, oldest first."""
    service = service_of(request)
    rows = await service.read(service.jobs.rows, limit=limit + 1, after=after, state=state)
    return answer_of(receipt_of(page_by_id([seen_as(JobTold, row) for row in rows], limit), kind=Page[JobTold]))


@router.get("/{key}", responses=gives(JobTold, TOLD))
async def get_job(request: Request, key: KeyPath) -> Response:
    """Return how far a job is."""
    service = service_of(request)
    return answer_of(receipt_of(seen_as(JobTold, await service.read(service.jobs.find, key))))


@router.get(
    "/{key}/events", response_class=StreamingResponse, responses=gives_text(EVENTS, "event: progress\ndata: {...}\n\n")
)
async def get_job_events(request: Request, key: KeyPath) -> Response:
    """Follow a job by server-sent events until it ends."""
    service = service_of(request)
    _require_room(service)
    first = await service.read(service.jobs.find, key)
    token = token_of(request.method, request.url.path, dict(request.scope["headers"]))
    return _Followed(service, _events(service, first, token))


@router.delete("/{key}", responses=gives(JobTold, replace(TOLD, state="cancelled", note="cancelled")))
async def delete_job(request: Request, key: KeyPath) -> Response:
    """Cancel a job; a worker that is at it stops within seconds."""
    service = service_of(request)
    return answer_of(receipt_of(seen_as(JobTold, await service.write(service.jobs.cancel, key))))


def _with_records(service: Service, wanted: PlanWanted) -> PlanWanted:
    """Return a request with the device and target themselves in the place of their names.

    The target's record is the store's own: its weights may have moved since the index read it.
    """
    service.index.refresh()
    device = service.index.devices.get(wanted.device) if isinstance(wanted.device, str) else wanted.device
    target = service.store.find_model(wanted.target) if isinstance(wanted.target, str) else wanted.target
    if device is None or target is None:
        name = f"device {wanted.device!r}" if device is None else f"model {wanted.target!r}"
        raise invalid(f"the store knows no {name}; list what it knows, or send the whole record")
    return replace(wanted, device=device, target=target)


def _require_few(service: Service) -> None:
    waiting = service.jobs.counts().get("waiting", 0)
    if waiting >= MOST_JOBS:
        told = f"{waiting} jobs are waiting already; cancel some, or ask again when some are done"
        raise ProblemError(429, "too-many", told, {"Retry-After": "60"})


def _require_bounded(wanted: PlanWanted) -> None:
    counts = (*wanted.batches, *wanted.contexts)
    if min(counts, default=1) < 1 or len(wanted.batches) * len(wanted.contexts) > MOST_CELLS:
        raise invalid(f"batches and contexts are at least 1, and at most {MOST_CELLS} cells in all")
    if max(len(wanted.batches), len(wanted.contexts)) > MOST_CELLS:
        raise invalid(f"at most {MOST_CELLS} batches, and as many contexts")
    if len(wanted.tables) > MOST_TABLES:
        raise invalid(f"at most {MOST_TABLES} frozen tables, got {len(wanted.tables)}")
    if wanted.new_tokens is not None and wanted.new_tokens < 2:
        raise invalid(f"answers have 2 new tokens or more, got {wanted.new_tokens}")
    if not 0.0 <= wanted.cached_share < 1.0:
        raise invalid(f"cached_share is a share of 0 to less than 1, got {wanted.cached_share}")
    if wanted.cached_share and wanted.new_tokens is None:
        raise invalid(f"cached_share, {wanted.cached_share}, counts with new_tokens alone; give these, too")
    if not 0 <= wanted.trials <= MOST_TRIALS:
        raise invalid(f"trials are 0 to {MOST_TRIALS}, got {wanted.trials}")


class _Followed(StreamingResponse):
    def __init__(self, service: Service, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require_room(self._service)  # again: others have come while the job was read
        self._service.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.streams -= 1


def _require_room(service: Service) -> None:
    if service.streams >= service.settings.streams:
        told = f"{service.streams} jobs are being followed already; ask GET /v1/jobs/KEY now and then"
        raise ProblemError(429, "too-many", told, {"Retry-After": "10"})


async def _events(service: Service, row: JobRow, token: str | None) -> AsyncIterator[str]:
    silent_s = 0.0
    last: JobTold | None = None
    while not service.is_stopping:
        told = replace(seen_as(JobTold, row), heartbeat=None)  # which alone is no news
        if told != last:
            yield f"event: progress\ndata: {to_json(seen_as(JobTold, row))}\n\n"
            last, silent_s = told, 0.0
        elif silent_s >= ALIVE_S:
            yield ": still here\n\n"
            silent_s = 0.0
        if row.state in ENDED:
            return
        await asyncio.sleep(LOOK_S)
        silent_s += LOOK_S
        if not await service.still_reads(token):
            return
        row = await service.read(service.jobs.find, row.key)
