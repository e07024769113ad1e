"""What every request passes: a request id, the caller, how often, what it needs; and last a line in the log.

Known answers to `GET /v1/resolve` go out here, since thousands of decoders send it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import traceback
from collections.abc import Mapping
from math import ceil
from time import monotonic, perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..db.wire import is_known
from ..errors import SpectuneError
from .callers import is_page, scope_for, token_of
from .log import tell
from .problem import MEDIA_TYPE, ProblemError, not_found, problem_of
from .sign_in import sign_in_place
from .state import Service

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
RESOLVE = "/v1/resolve"
NO_ANSWER = 499  # in logs: the client hung up
PAGE_KIND = b"text/html"


Headers = Mapping[bytes, bytes]
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestGate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(scope["headers"])
        answer = _Answer(send, _request_id(headers))
        scope.setdefault("state", {})["request_id"] = answer.request_id
        try:
            await self._let_in(scope, headers, receive, answer)
        except ProblemError as problem:
            await _refuse(scope, answer, problem)
        except (SpectuneError, OverflowError, RecursionError) as error:
            await _refuse(scope, answer, problem_of(error))
        except ClientDisconnect:
            answer.status = answer.status or NO_ANSWER
        except asyncio.CancelledError:
            answer.status = answer.status or NO_ANSWER
            raise
        except Exception:  # a mistake of ours must cost one request, not the service
            tell("internal error", level=logging.ERROR, request_id=answer.request_id, traceback=traceback.format_exc())
            await _refuse(scope, answer, ProblemError(500, "internal", "a mistake of the service; its log says more"))
        finally:
            self._note(scope, answer)

    async def _let_in(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        service, method, path = self._service, scope["method"], scope["path"]
        self._require_host(headers)
        if CONTROL.search(path):  # routes end with `$`, which a line feed may follow: they would be of another scope
            raise not_found(f"no path here has a control character; got {path[:100]!r}")
        needed = scope_for(method, path)
        if needed is not None:
            token = token_of(method, path, headers)
            if not service.callers.knows(token):
                await service.freshen_callers()
            try:
                caller = service.callers.caller(token, needed)
            except ProblemError:
                self._require_calm(scope, "")  # refusals count for the address: it may try one token after the other
                raise
            scope["state"]["caller"] = caller
            answer.caller = caller.name
            self._require_calm(scope, caller.name)
        elif path not in ("/healthz", "/readyz"):  # who looks after the service may share an address with strangers
            self._require_calm(scope, "")
        if path == RESOLVE and method == "GET" and await self._is_resolved(scope, headers, answer):
            return
        await self._app(scope, receive, answer)

    def _require_host(self, headers: Headers) -> None:
        """Refuse a name that this service does not go by: a web page may have made its own name point here."""
        hosts = self._service.settings.hosts
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if hosts and re.sub(r":\d+$", "", host) not in hosts:
            raise ProblemError(421, "wrong-host", f"this service is not {host[:100]!r}; ask it as {' or '.join(hosts)}")

    def _require_calm(self, scope: Scope, name: str) -> None:
        client = scope.get("client")
        is_known = bool(name) and self._service.callers.needs_token
        who = f"token {name}" if is_known or not client else f"address {client[0]}"
        wait_s = self._service.buckets.wait_s(who, monotonic())
        if wait_s:
            self._service.metrics.events["rate_limited"] += 1
            told = f"too many requests of {who}; ask again in {wait_s:.2g} s"
            raise ProblemError(429, "too-many", told, {"Retry-After": str(ceil(wait_s))})

    async def _is_resolved(self, scope: Scope, headers: Headers, answer: _Answer) -> bool:
        await self._service.freshen(self._service.index)
        ready = self._service.resolver.ready(scope["query_string"])
        if ready is None:
            return False
        self._service.metrics.events["resolve_cache_hits"] += 1
        answer.route = RESOLVE
        is_fresh = is_known(headers.get(b"if-none-match", b"").decode("latin-1"), ready.tag.decode())
        body = b"" if is_fresh else ready.body
        kind = [(b"etag", ready.tag), (b"cache-control", b"no-cache")]
        if not is_fresh:
            kind += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await answer({"type": "http.response.start", "status": 304 if is_fresh else 200, "headers": kind})
        await answer({"type": "http.response.body", "body": body})
        return True

    def _note(self, scope: Scope, answer: _Answer) -> None:
        seconds = perf_counter() - answer.began
        route = answer.route or getattr(scope.get("route"), "path", None) or "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._service.metrics.note(method, route, answer.status, seconds)
        tell(
            "request",
            request_id=answer.request_id,
            method=scope["method"][:20],
            path=scope["path"][:500],
            status=answer.status,
            ms=round(1e3 * seconds, 3),
            bytes=answer.bytes,
            caller=answer.caller,
        )


class _Answer:
    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id, self.caller, self.route = request_id, "", ""
        self.status = self.bytes = 0
        self.began = perf_counter()
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            headers.append((b"x-request-id", self.request_id.encode()))
            if not any(name == b"x-content-type-options" for name, _ in headers):
                headers.append((b"x-content-type-options", b"nosniff"))
            message = {**message, "headers": headers}
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)


async def _refuse(scope: Scope, answer: _Answer, problem: ProblemError) -> None:
    if answer.status:  # it has begun; all that is left is to end it
        return
    headers = {**problem.headers}
    is_persons = is_page(scope["path"]) and PAGE_KIND in dict(scope["headers"]).get(b"accept", b"")
    if problem.status == 401 and is_persons:
        problem = ProblemError(303, "sign-in", f"{scope['path']} needs a token; sign in first")
        headers = {"Location": sign_in_place(scope["path"])}
    body = problem.body(scope["path"][:500], answer.request_id)
    told = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    told += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    await answer({"type": "http.response.start", "status": problem.status, "headers": told})
    await answer({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _request_id(headers: Headers) -> str:
    asked = headers.get(b"x-request-id", b"").decode("latin-1")
    return asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
