"""How a service is: alive, ready, and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from ..db.migrate import HEAD
from ..db.news import schema_of
from ..db.wire import API, ServiceInfo
from ..errors import StoreError
from ..runtime.watch.prometheus import Labels
from .documents import gives, gives_text
from .metrics import MEDIA_TYPE
from .problem import RETRY_S, ProblemError
from .state import Service, service_of
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
    wrong = await service.read(_wrong_with, service)
    if wrong:
        raise ProblemError(503, "not-ready", "; ".join(wrong), {"Retry-After": str(RETRY_S)})
    return answer_of(receipt_of(OK))


@router.get(
    "/metrics", response_class=PlainTextResponse, responses=gives_text("text/plain", "# TYPE spectune_plans gauge\n")
)
async def get_metrics(request: Request) -> Response:
    """Return what Prometheus scrapes."""
    service = service_of(request)
    await service.freshen_index()
    states = await service.read(service.jobs.counts)
    index, resolver = service.index, service.resolver
    gauges: dict[str, list[tuple[Labels, float]]] = {
        "build": [({"version": version("spectune"), "schema": HEAD}, 1.0)],
        "jobs": [({"state": state}, float(count)) for state, count in sorted(states.items())],
        "job_worker_up": [({}, float(service.is_planning()))],
        "plans": [({}, float(index.plans))],
        "resolve_cache_bytes": [({}, float(resolver.kept_bytes))],
        "job_streams": [({}, float(service.streams))],
    }
    return Response(service.metrics.text(gauges), headers={"Content-Type": MEDIA_TYPE})


def _wrong_with(service: Service) -> list[str]:
    wrong = []
    try:
        seen = schema_of(service.store)
        if seen != HEAD:
            wrong.append(f"the database has schema {seen}, this version needs {HEAD}; restart the service")
    except StoreError as error:
        wrong.append(f"the database does not answer: {error}")
    if not service.is_planning():
        wrong.append("no worker for jobs is alive; the log says why")
    return wrong
