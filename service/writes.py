"""Writes: their work and its receipt are stored in one transaction, and acknowledged after it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..db.jobs.receipts import Receipt
from ..db.wire import IDEMPOTENCY_KEY
from ..errors import StoreError
from ..profiler.records.wire import to_json
from .body import read_body, require_json
from .problem import invalid
from .state import Service, caller_of, service_of

KEY = re.compile(r"[!-~]{1,200}")
NOTHING = Receipt(status=204, body="")

Work = Callable[[], Receipt]  # reads and writes the store
Prepare = Callable[
    ..., Work
]  # of the service, the caller's name, the body, and values of the path by name; checks all it can


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One write as it came."""

    caller: str
    key: str | None  # the client's name for it
    digest: str  # of all of it
    body: bytes
    is_news: bool  # whether it may change what the index of plans knows


async def written(
    request: Request, prepare: Prepare, *, is_json: bool = True, is_large: bool = False, is_news: bool = True
) -> Response:
    """Do a write once and answer it; a refusal (ProblemError) writes nothing.

    `prepare` checks the body before any transaction, and returns what to do in one. `is_large` writes take so much
    memory that they run one at a time; those that are no news change nothing that the index of plans knows.
    """
    if is_json:
        require_json(request)
    service = service_of(request)
    body = await read_body(request, service.settings)
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not KEY.fullmatch(key):
        raise invalid(f"{IDEMPOTENCY_KEY} must be 1 to 200 printable ASCII characters without blanks")
    sent = Sent(caller=caller_of(request).name, key=key, digest=_digest(request, body), body=body, is_news=is_news)
    write = service.write_large if is_large else service.write
    return answer_of(await write(done, service, sent, prepare))


def done(service: Service, sent: Sent, prepare: Prepare) -> Receipt:
    """Do a write in this thread, in one transaction with its receipt."""
    work = prepare(service, sent.caller, sent.body)
    if sent.key is None:
        with service.store.transaction():
            receipt = work()
    else:
        receipt = service.receipts.once(sent.key, sent.caller, sent.digest, work)
    if sent.is_news:
        with suppress(StoreError):  # whoever is told of the write also sees it; it is kept, whatever fails now
            service.index.refresh()
    return receipt


def receipt_of(record: object, status: int = 200, kind: Any = None) -> Receipt:
    """Return an HTTP answer that consists of a record, seen as `kind`, e.g. a page of something."""
    return Receipt(status=status, body=to_json(record, kind))


def answer_of(receipt: Receipt) -> Response:
    """Return the response of a receipt."""
    headers = {"Idempotent-Replay": "true"} if receipt.is_repeated else {}
    if receipt.status == 204:
        return Response(status_code=204, headers=headers)
    return Response(receipt.body, status_code=receipt.status, headers=headers, media_type="application/json")


def _digest(request: Request, body: bytes) -> str:
    head = f"{request.method} {request.url.path}?{request.url.query}\n".encode(errors="replace")
    return hashlib.sha256(head + body).hexdigest()
