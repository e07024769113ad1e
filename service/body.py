"""Bodies of requests: read piece by piece, unpacked, and never larger than allowed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TypeVar

from starlette.requests import Request

from ..errors import SpectuneError
from ..profiler.records.wire import from_json
from .problem import ProblemError, invalid
from .settings import ServiceSettings

GZIP = 16 + zlib.MAX_WBITS
Record = TypeVar("Record")


async def read_body(request: Request, settings: ServiceSettings) -> bytes:
    """Return the whole body, unpacked; ProblemError: 413 too large, 415 unknown packing, 408 too slow, 422 damaged."""
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        raise ProblemError(415, "unsupported", f"a body may be packed by gzip or not at all, got {packing[:40]!r}")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > settings.body_bytes:
        raise _too_large(settings)
    unpack = _Gunzip(settings) if packing == "gzip" else None
    whole = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for chunk in request.stream():
                whole += chunk if unpack is None else unpack(chunk, settings.body_bytes - len(whole))
                if len(whole) > settings.body_bytes:
                    raise _too_large(settings)
    except TimeoutError:
        told = f"the body was not here after {settings.body_timeout_s:g} s; send less at once, or as an upload"
        raise ProblemError(408, "too-slow", told) from None
    if unpack is not None:
        unpack.require_end()
    return bytes(whole)


def require_json(request: Request) -> None:
    """Raise ProblemError (415) for a body that is not said to be JSON; forms of foreign web pages never are."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        told = f"the body must be JSON, its Content-Type is {kind[:80]!r}; send application/json"
        raise ProblemError(415, "unsupported", told)


def record_of(kind: type[Record], body: bytes) -> Record:
    """Return the record of a body; raise ProblemError (422) where it is none."""
    try:
        body.decode()  # dropped at once: a large body must not be in memory twice while it is read
        return from_json(kind, body)
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8 ({error.reason} at byte {error.start}); send UTF-8") from None
    except SpectuneError as error:
        raise invalid(str(error)) from error


class _Gunzip:
    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._stream = settings, zlib.decompressobj(GZIP)

    def __call__(self, chunk: bytes, room: int) -> bytes:
        try:
            unpacked = self._stream.decompress(chunk, room + 1)
        except zlib.error as error:
            raise invalid(f"the body is not gzip: {error}") from None
        if len(unpacked) > room:
            raise _too_large(self._settings)
        if self._stream.unused_data:  # every further call would copy all of it
            raise invalid("more follows the end of the gzip body; send it alone")
        return unpacked

    def require_end(self) -> None:
        if not self._stream.eof:
            raise invalid("the gzip body is cut off; send it whole")


def _too_large(settings: ServiceSettings) -> ProblemError:
    told = (
        f"this body has at most {settings.body_bytes} bytes, unpacked; "
        "send less, or a large record as an upload (POST /v1/uploads)"
    )
    return ProblemError(413, "too-large", told)
