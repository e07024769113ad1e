"""Answers that outlive the service: what it says now, else what it said last, and a note that says so."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from ..errors import StoreError
from .remote_cache import AnswerCache, Kept
from .remote_http import BRISK, NOT_MODIFIED, PATIENT, Answer, AwayError, Patience, RefusedError
from .remote_service import ABSENT, CONFLICT, Params, Service
from .wire import tag_of

AWAY_S = 30.0  # how long a service that did not answer is not asked again for what is kept

Record = TypeVar("Record")
Understand = Callable[[str, str | None], Record]  # of a text and its ETag; raises StoreError where it is another thing


class Fetch(Protocol):
    """Asks the service; it may answer that what had an ETag is still so."""

    def __call__(self, *, etag: str | None, patience: Patience) -> Answer:
        """Return the answer."""
        ...


class CachedReader:
    """Reads cached on disk once understood, for any thread; `note` is "" while every answer was the service's own."""

    def __init__(self, service: Service, cache: AnswerCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        self._service, self._cache, self._clock = service, cache, clock
        self._away_until_s = clock()
        self._oldest = ""  # UTC, ISO 8601: of what was used although it may be out of date

    @property
    def is_away(self) -> bool:
        """Whether the service did not answer a moment ago."""
        return self._clock() < self._away_until_s

    def get(self, kind: type[Record], path: str, params: Params | None = None, patience: Patience = PATIENT) -> Record:
        """Return one record of a path with its query; `patience` is for a request without a cached answer.

        Raises:
            AwayError: the service does not answer, and never answered this before.
            StoreError: it refuses (earlier answers do not count then), or answers something else.
        """
        asked = path if not params else f"{path}?{urlencode(_plain(params))}"
        fetch = partial(self._service.fetch, path, params)
        return self._now_or_before(asked, patience, fetch, lambda text, _: self._service.read(kind, text.encode()))

    def text(self, path: str) -> str:
        """Return a text whose ETag is its sha256; errors are those of `get`, or StoreError for another hash."""

        def whole(text: str, etag: str | None) -> str:
            if etag is None or tag_of(etag) != hashlib.sha256(text.encode()).hexdigest():
                raise StoreError(f"{self._service.url} sent a text for {path} that does not have its hash; ask again")
            return text

        return self._now_or_before(path, PATIENT, partial(self._service.fetch, path, None), whole)

    def ask(self, path: str, body: str, understand: Callable[[str], Record]) -> Record:
        """Return the answer to a question that is posted and changes nothing, as `get` does."""

        def asking(*, etag: str | None, patience: Patience) -> Answer:
            return self._service.post(path, body, patience)

        return self._now_or_before(f"{path} {body}", PATIENT, asking, lambda text, _: understand(text))

    def went_away(self, error: AwayError) -> None:
        """Remember that the service did not answer just now."""
        self._away_until_s = self._clock() + AWAY_S
        self.note = " ".join(str(error).split())

    def _now_or_before(self, asked: str, patience: Patience, fetch: Fetch, understand: Understand[Record]) -> Record:
        kept = self._kept(asked, understand)
        if kept is not None and self.is_away:
            return self._old(*kept)
        try:
            answer = fetch(etag=kept[0].etag if kept else None, patience=BRISK if kept else patience)
        except AwayError as error:
            self.went_away(error)
            if kept is None:
                raise
            return self._old(*kept)
        except RefusedError as error:
            if error.kind and error.status in (ABSENT, CONFLICT):  # the service itself says so, no proxy before it
                self._cache.forget(asked)
            raise
        self._came_back()
        if answer.status == NOT_MODIFIED and kept is not None:
            self._cache.keep(asked, kept[0].body, kept[0].etag)  # it is as new as what is said now
            return kept[1]
        text = answer.body.decode(errors="replace")
        record = understand(text, answer.etag)
        self._cache.keep(asked, text, answer.etag)
        return record

    def _kept(self, asked: str, understand: Understand[Record]) -> tuple[Kept, Record] | None:
        kept = self._cache.recalled(asked)
        if kept is None:
            return None
        try:
            return kept, understand(kept.body, kept.etag)
        except StoreError:
            return None

    def _came_back(self) -> None:
        self._away_until_s = self._clock()
        if not self._oldest:
            self.note = ""

    def _old(self, kept: Kept, record: Record) -> Record:
        self._oldest = min(kept.at, self._oldest or kept.at)
        self.note = f"{self._service.url} does not answer; what it said on {self._oldest[:19]} UTC is used"
        return record


def _plain(params: Params) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in sorted(params.items()) if value is not None]
