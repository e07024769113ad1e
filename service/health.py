"""How a service is: alive, ready, and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from ..db.sql.migrate import HEAD
from ..db.wire import API, ServiceInfo
from ..runtime.watch.prometheus import Labels
from .documents import gives, gives_text
from .jobs import STATES
from .metrics import MEDIA_TYPE
from .problem import RETRY_S, ProblemError
from .state import service_of
from .writes import answer_of, receipt_of

router = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a service says to whoever looks after it."""

    status: str


OK = Health(status="ok")


@router.get("/v1", responses=gives(ServiceInfo, ServiceInfo(spectune="0.1.0", schema=HEAD, api=API)))
async def get_info(request: Request) -> Response:
    """Return which versions are at work."""
    return answer_of(receipt_of(ServiceInfo(spectune=version("spectune"), schema=HEAD, api=API)))


@router.get("/healthz", responses=gives(Health, OK))
async def get_health() -> Response:
    """Say that the process answers."""
    return answer_of(receipt_of(OK))


@router.get("/readyz", responses=gives(Health, OK))
async def get_readiness(request: Request) -> Response:
    """Say whether the database answers, its schema is this version's, and jobs are worked on."""
    service = service_of(request)
    await service.freshen(service.readiness)
    workers = None if service.is_planning() else "not every worker for jobs is alive; the log says why"
    wrong = [said for said in (service.readiness.wrong, workers) if said]
    if wrong:
        raise ProblemError(503, "not-ready", "; ".join(wrong), {"Retry-After": str(RETRY_S)})
    return answer_of(receipt_of(OK))


@router.get(
    "/metrics", response_class=PlainTextResponse, responses=gives_text("text/plain", "# TYPE spectune_plans gauge\n")
)
async def get_metrics(request: Request) -> Response:
    """Return what Prometheus scrapes."""
    service = service_of(request)
    await service.freshen(service.index)
    states = await service.read(service.jobs.counts)
    index, resolver = service.index, service.resolver
    gauges: dict[str, list[tuple[Labels, float]]] = {
        "build": [({"version": version("spectune"), "schema": HEAD}, 1.0)],
        "jobs": [({"state": state}, float(states.get(state, 0))) for state in STATES],
        "job_worker_up": [({}, float(service.is_planning()))],
        "plans": [({}, float(len(index.plans)))],
        "resolve_cache_bytes": [({}, float(resolver.kept_bytes))],
        "job_streams": [({}, float(service.streams))],
    }
    return Response(service.metrics.text(gauges), headers={"Content-Type": MEDIA_TYPE})
