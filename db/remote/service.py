"""A planner service as records: requests and answers, in pieces where they are large."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

from ...errors import SpectuneError, StoreError
from ...profiler.records.wire import from_json, to_json
from ..wire import API, MOST_BODY_BYTES, MOST_ITEMS, UPLOAD_OFFSET, NewUpload, Page, ServiceInfo, UploadState
from .transport import ONCE, PATIENT, Ask, AwayError, ExponentialBackoff, RefusedError, ServiceAnswer, Transport

Record = TypeVar("Record")
Params = Mapping[str, str | float | bool | tuple[str, ...] | None]
PIECE_BYTES = 4 * 2**20  # of an upload
ABSENT, CONFLICT, INVALID = 404, 409, 422
MOST_STUMBLES = 20  # wrong offsets of one upload before it is given up
BYTES, TEXT = "application/octet-stream", "text/plain; charset=utf-8"


class ServiceClient:
    """The requests to one service; safe to share between threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.url = transport.url.shown

    def get(self, kind: type[Record], path: str, params: Params | None = None) -> Record:
        """Return one record; raise AwayError without an answer, StoreError for a refusal or another record."""
        return self.read(kind, self.fetch(path, params).body)

    def find(self, kind: type[Record], path: str, params: Params | None = None) -> Record | None:
        """Return one record as `get` does, None where the service has none."""
        answer = self._found(path, params)
        return None if answer is None else self.read(kind, answer.body)

    def text(self, path: str) -> str | None:
        """Return a text byte for byte, None where the service has none."""
        answer = self._found(path, None)
        return None if answer is None else answer.body.decode()

    def all(
        self,
        kind: type[Record],
        path: str,
        params: Params | None = None,
        limit: int | None = None,
        after: int | None = None,
        get: Callable[[type[Page[Record]], str, Params], Page[Record]] | None = None,
    ) -> list[Record]:
        """Return a list, page by page by `get`: at most `limit` items, those after `after`."""
        items: list[Record] = []
        while limit is None or len(items) < limit:
            most = MOST_ITEMS if limit is None else min(MOST_ITEMS, limit - len(items))
            asked: Params = {**(params or {}), "limit": most, "after": after}
            page = (get or self.get)(Page[kind], path, asked)  # type: ignore[valid-type]
            items += page.items
            if page.next is None:
                break
            after = page.next
        return items

    def fetch(
        self, path: str, params: Params | None = None, etag: str | None = None, patience: ExponentialBackoff = PATIENT
    ) -> ServiceAnswer:
        """Return the answer to a GET."""
        headers = () if etag is None else (("If-None-Match", etag),)
        return self._transport.send(
            Ask(method="GET", path=path, params=params_of(params), headers=headers), patience=patience
        )

    def post(self, path: str, body: str, patience: ExponentialBackoff = PATIENT) -> ServiceAnswer:
        """Return the answer to a question that is too long for a URL; nothing is written."""
        return self._transport.send(Ask(method="POST", path=path, body=body.encode()), patience)

    def write(
        self, method: str, path: str, record: object, *, key: str | None = None, patience: ExponentialBackoff = PATIENT
    ) -> ServiceAnswer:
        """Send a record once, whatever the network does, and return the answer; equal keys are one write.

        After an AwayError it is not known whether the record was stored; after any other StoreError it was not.
        """
        ask = Ask(method=method, path=path, body=to_json(record).encode(), key=key or str(uuid4()))
        return self._sent(ask, patience)

    def ask(self, kind: type[Record], path: str, record: object) -> Record:
        """Post a record once, as `write` does, and return the record that is answered."""
        return self.read(kind, self.write("POST", path, record).body)

    def write_text(self, path: str, text: str) -> None:
        """Put a text where none is yet."""
        self._sent(Ask(method="PUT", path=path, body=text.encode(), content_type=TEXT, key=str(uuid4())), PATIENT)

    def read(self, kind: type[Record], body: bytes) -> Record:
        """Return the record of a body; raise StoreError, with differing versions, where it is another one."""
        try:
            return from_json(kind, body)
        except SpectuneError as error:
            raise StoreError(
                f"{self.url} answered what this spectune ({version('spectune')}) does not understand: {error}"
            ) from error

    def _found(self, path: str, params: Params | None) -> ServiceAnswer | None:
        try:
            return self.fetch(path, params)
        except RefusedError as error:
            if error.status == ABSENT:
                return None
            raise

    def _sent(self, ask: Ask, patience: ExponentialBackoff) -> ServiceAnswer:
        assert ask.body is not None
        if len(ask.body) <= MOST_BODY_BYTES:
            return self._transport.send(ask, patience)
        return self._uploaded(ask, ask.body, patience)

    def _uploaded(self, ask: Ask, body: bytes, patience: ExponentialBackoff) -> ServiceAnswer:
        """Send a large body in pieces, each again where it was cut, and let the service do what it means."""
        new = NewUpload(
            kind=ask.path.rpartition("/")[2],
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            target=ask.path,
            method=ask.method,
        )
        begun = self.write("POST", "/v1/uploads", new, patience=patience)
        state = self.read(UploadState, begun.body)
        place = f"/v1/uploads/{quote(state.key, safe='')}"
        try:
            self._send_pieces(place, body, state.received, patience)
        except BaseException:  # refused, away or interrupted: nobody goes on with it
            self._drop(place)
            raise
        try:
            return self._transport.send(Ask(method="POST", path=f"{place}/finish", key=ask.key), patience)
        except AwayError:  # all of it is there: the service may be at it still
            raise
        except BaseException:
            self._drop(place)
            raise

    def _drop(self, place: str) -> None:
        with suppress(StoreError):
            self._transport.send(Ask(method="DELETE", path=place), ONCE)

    def _send_pieces(self, place: str, body: bytes, received: int, patience: ExponentialBackoff) -> None:
        stumbles = 0
        while received < len(body):
            piece = body[received : received + PIECE_BYTES]
            try:
                headers = ((UPLOAD_OFFSET, str(received)),)
                self._transport.send(
                    Ask(method="PATCH", path=place, body=piece, content_type=BYTES, headers=headers), patience
                )
                received += len(piece)
            except RefusedError as error:
                stumbles += 1
                if error.status != CONFLICT or stumbles > MOST_STUMBLES:
                    raise
                received = self.get(UploadState, place).received  # a piece arrived whose answer did not


def require_spoken(info: ServiceInfo, url: str) -> None:
    """Raise StoreError where a service does not speak the language of this client."""
    if info.api != API:
        newer = "this client" if info.api > API else "the service"
        raise StoreError(
            f"{url} speaks version {info.api} of the service's language (spectune {info.spectune}), and this client "
            f"version {API} (spectune {version('spectune')}); update {newer}"
        )


def params_of(params: Params | None) -> tuple[tuple[str, str], ...]:
    """Return a query as texts, without what is None."""
    pairs: list[tuple[str, str]] = []
    for name, value in (params or {}).items():
        if isinstance(value, tuple):
            pairs += [(name, each) for each in value]
        elif value is not None:
            pairs.append((name, _written(value)))
    return tuple(pairs)


def _written(value: str | float | bool) -> str:
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else repr(value)
