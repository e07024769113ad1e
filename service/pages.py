"""Pages for people: what the store holds, at their own addresses, for all who may read."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse

from ..errors import SpectuneError
from ..report.site.contents import Contents, NoPageError
from ..report.site.device import device_page_of
from ..report.site.difference import difference_page_of
from ..report.site.drift import drift_page
from ..report.site.frame import Frame, document
from ..report.site.jobs import jobs_page
from ..report.site.links import SiteLinks, device_page
from ..report.site.overview import overview_page
from ..report.site.page import SitePage
from ..report.site.plan import plan_page_of
from ..report.site.plans import plans_page
from ..report.site.refusal import refusal_page
from ..report.site.surface import surface_page_of
from ..report.site.trace import trace_page_of
from .callers import token_in_cookie
from .problem import problem_of
from .state import service_of

router = APIRouter(include_in_schema=False)

NUMBER = re.compile(r"[1-9][0-9]{0,8}")
MOST_JOBS = 200
LINKS = SiteLinks()
HEADERS = {
    "Cache-Control": "private, no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Maker = Callable[[Contents], SitePage]


def _difference(contents: Contents, older: str, newer: str) -> SitePage:
    return difference_page_of(contents, LINKS, contents.row(_number(older)), contents.row(_number(newer)))


def _device(contents: Contents, name: str) -> SitePage:
    for fingerprint, device in contents.devices.items():
        if device_page(fingerprint) == f"devices/{name}":
            return device_page_of(contents, LINKS, device)
    raise NoPageError(f"there is no device {name[:64]!r}; all are listed in the overview")


def _surface(contents: Contents, slug: str) -> SitePage:
    for entry in contents.surfaces:
        if entry.slug == slug:
            return surface_page_of(contents, LINKS, entry)
    raise NoPageError(f"there is no surface {slug[:64]!r}; all are listed with their devices")


def _trace(contents: Contents, number: str) -> SitePage:
    wanted = _number(number)
    for row in contents.traces:
        if row.id == wanted:
            return trace_page_of(contents, LINKS, row)
    raise NoPageError(f"there is no trace {wanted}; all are listed in the overview")


PAGES: dict[str, Callable[..., SitePage]] = {  # by path: makers of what the store holds and the texts in the path
    "/": lambda contents: overview_page(contents, LINKS),
    "/plans": lambda contents: plans_page(contents, LINKS),
    "/plans/{number}": lambda contents, number: plan_page_of(contents, LINKS, contents.row(_number(number))),
    "/plans/{older}/diff/{newer}": _difference,
    "/devices/{name}": _device,
    "/surfaces/{slug}": _surface,
    "/traces/{number}": _trace,
    "/drift": lambda contents: drift_page(contents, LINKS),
}


def _add_page(path: str, make: Callable[..., SitePage]) -> None:
    async def show(request: Request) -> Response:
        return await _shown(request, partial(make, **request.path_params))

    router.add_api_route(path, show)


for own_path, own_maker in PAGES.items():
    _add_page(own_path, own_maker)


@router.get("/jobs")
async def get_jobs(request: Request) -> Response:
    """Show the planning jobs."""
    jobs = service_of(request).jobs

    def make(contents: Contents) -> SitePage:
        newest = jobs.newest(MOST_JOBS)
        return jobs_page(contents, LINKS, newest, older=sum(jobs.counts().values()) - len(newest))

    return await _shown(request, make)


def page_response(request: Request, page: SitePage, status: int = 200, *, is_open: bool = False) -> HTMLResponse:
    """Return a page as an answer that may run its own style and scripts, and nothing else.

    An `is_open` page is for anybody: it says nothing of the store, not even where it lies.
    """
    service, nonce = service_of(request), secrets.token_urlsafe(18)
    frame = Frame(
        links=LINKS,
        place="" if is_open else service.store.url,
        nonce=nonce,
        is_bare=is_open,
        has_sign_out=not is_open and token_in_cookie(dict(request.scope["headers"])) is not None,
    )
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    text = document(frame, [page], title=page.title, current=page.name)
    return HTMLResponse(text.encode(errors="replace"), status, {**HEADERS, "Content-Security-Policy": policy})


async def _shown(request: Request, make: Maker) -> Response:
    service = service_of(request)
    try:
        page = await service.show(lambda: make(Contents(service.store)))
    except NoPageError as error:
        return page_response(request, refusal_page(LINKS, "Nothing here", str(error)), 404)
    except SpectuneError as error:
        problem = problem_of(error)
        response = page_response(request, refusal_page(LINKS, "This cannot be shown", problem.detail), problem.status)
        response.headers.update(problem.headers)
        return response
    return page_response(request, page)


def _number(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise NoPageError(f"{text[:20]!r} is no number of a plan or a trace; all are listed in the overview")
    return int(text)
