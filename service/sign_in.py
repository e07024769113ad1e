"""Signing in and out: a person's browser gives a token once and keeps it as a cookie."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..report.site.refusal import sign_in_page
from .body import read_body
from .callers import TOKEN, forgotten, kept
from .pages import page_response
from .problem import ProblemError
from .settings import ServiceSettings
from .state import service_of

router = APIRouter(include_in_schema=False)

FORM = ServiceSettings(body_bytes=4096, body_timeout_s=10.0)  # which bounds its fields, too
OWN_PATH = re.compile(r"/(?![/\\])[A-Za-z0-9/_.%~-]{0,500}")
WRONG = "This token is unknown, expired or revoked, or may not read."


@router.get("/sign-in")
async def get_sign_in(request: Request) -> Response:
    """Ask for a token."""
    return page_response(request, sign_in_page(_own_path(request.query_params.get("next", "/"))), is_open=True)


@router.post("/sign-in")
async def post_sign_in(request: Request) -> Response:
    """Let the browser keep a token that may read, and go to where its reader was."""
    _require_own_form(request)
    fields = parse_qs((await read_body(request, FORM)).decode("latin-1"))
    token, where = fields.get("token", [""])[0].strip(), _own_path(fields.get("next", ["/"])[0])
    service = service_of(request)
    if not service.callers.knows(token):
        await service.freshen_callers()
    row = service.callers.row(token) if TOKEN.fullmatch(token) else None
    if row is None or not row.allows("read"):
        return page_response(request, sign_in_page(where, WRONG), 401, is_open=True)
    answer = RedirectResponse(where, 303, {"Cache-Control": "no-store"})
    answer.headers["Set-Cookie"] = kept(token, is_secure=request.url.scheme == "https")
    return answer


@router.post("/sign-out")
async def post_sign_out(request: Request) -> Response:
    """Let the browser forget its token."""
    _require_own_form(request)
    answer = RedirectResponse("/sign-in", 303, {"Cache-Control": "no-store"})
    answer.headers["Set-Cookie"] = forgotten(is_secure=request.url.scheme == "https")
    return answer


def sign_in_place(path: str) -> str:
    """Return where a reader without a token is sent, to come back to a path."""
    return f"/sign-in?next={quote(_own_path(path), safe='/')}"


def _own_path(text: str) -> str:
    return text if OWN_PATH.fullmatch(text) else "/"


def _require_own_form(request: Request) -> None:
    """Refuse the form of a foreign page, as browsers tell it."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ProblemError(403, "forbidden", "this form was sent by a page of another site; sign in at /sign-in")
