"""The application: every route behind the gate, and what lives as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..db.sql.sql_store import SqlStore
from ..db.url import is_service, named_place, resolve_url
from ..errors import RequestError
from . import health, jobs, pages, plans, profiles, resolving, routes, sign_in, uploads
from .documents import document_of
from .gate import RequestGate
from .planning import Planning
from .problem import ProblemError
from .settings import ServiceSettings
from .state import Service

PATIENCE_S = 2.0  # for a database that is away; then the client is told, and is patient itself
ROUTERS = (
    health.router,
    routes.records,
    profiles.router,
    uploads.router,
    resolving.router,
    routes.plans,
    plans.drifts,
    jobs.router,
    pages.router,
    sign_in.router,
)
ABOUT = "Measurements, plans and what becomes of them. Writes take an Idempotency-Key; errors are problem+json."


def create_app(store: str | SqlStore | None = None, settings: ServiceSettings | None = None) -> FastAPI:
    """Return the application of a store, which it opens and closes where `store` is a URL.

    StoreError: the store cannot be opened. RequestError: it is a service itself.
    """
    opened = store if isinstance(store, SqlStore) else _opened(store)
    allowed = settings or ServiceSettings()
    opened.patience_s = min(opened.patience_s, PATIENCE_S)
    opened.outlast_power_cuts()
    planning = Planning(opened, allowed.workers)
    service = Service(opened, allowed, lambda: planning.is_alive)
    app = FastAPI(
        title="spectune",
        version=version("spectune"),
        description=ABOUT,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=partial(_living, service, planning, closes=opened is not store),
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(RequestGate, service=service)
    app.add_exception_handler(RequestValidationError, _refuse_parameters)
    app.add_exception_handler(HTTPException, _refuse_path)
    app.openapi = partial(document_of, app)  # type: ignore[method-assign]  # FastAPI's own way to replace it
    return app


def _opened(url: str | None) -> SqlStore:
    place = named_place(url)
    if is_service(place):
        raise RequestError(f"{place.partition('://')[0]}:// is a service already; serve the database behind it")
    return SqlStore(resolve_url(place))


@asynccontextmanager
async def _living(service: Service, planning: Planning, _app: FastAPI, *, closes: bool) -> AsyncIterator[None]:
    await service.freshen_callers()
    await service.freshen(service.index)
    planning.start()
    try:
        yield
    finally:
        service.is_stopping = True
        planning.stop()
        if closes:
            service.store.close()


async def _refuse_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    raise ProblemError(422, "invalid", f"{place}: {first['msg']}")


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: "not-found", 405: "wrong-method"}
    told = {404: "there is nothing at this path; see /openapi.json", 405: "the path has other methods; see Allow"}
    status = error.status_code
    headers = {"Allow": _allowed(request)} if status == 405 else error.headers
    raise ProblemError(status, kinds.get(status, "refused"), told.get(status, str(error.detail)), headers)


def _allowed(request: Request) -> str:
    """Return every method of a path; the routes that have them know only their own."""
    path = request.scope["path"]
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    found = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    return ", ".join(sorted(found))
