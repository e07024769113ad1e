"""Answers that outlive the service: what it says now, else what it said last, and a note that says so."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol
from urllib.parse import urlencode

from ..errors import StoreError
from .etags import tag_of
from .remote_cache import AnswerCache, Kept
from .remote_http import BRISK, NOT_MODIFIED, PATIENT, Answer, AwayError, Patience
from .remote_service import Params, Service

AWAY_S = 30.0  # how long a service that did not answer is not asked again for what is kept


class Fetch(Protocol):
    """Asks the service; it may answer that what had an ETag is still so."""

    def __call__(self, *, etag: str | None, patience: Patience) -> Answer:
        """Return the answer."""
        ...


class CachedReader:
    """Reads that are kept on disk; safe to share between threads.

    Attributes:
        note: what a reader should know; "" as long as every answer was the service's own.
    """

    def __init__(self, service: Service, cache: AnswerCache, clock: Callable[[], float] = time.monotonic) -> None:
        """Read from a service, and keep what it says in a cache."""
        self.note = ""
        self._service, self._cache, self._clock = service, cache, clock
        self._away_until_s = clock()
        self._oldest = ""  # UTC, ISO 8601: of what was used although it may be out of date

    @property
    def is_away(self) -> bool:
        """Whether the service did not answer a moment ago."""
        return self._clock() < self._away_until_s

    def read(
        self, path: str, params: Params | None = None, patience: Patience = PATIENT, *, is_hashed: bool = False
    ) -> str:
        """Return the text of an answer.

        Args:
            path: what is asked for.
            params: what stands behind the question mark.
            patience: where nothing is kept to fall back on.
            is_hashed: whether the answer's ETag is the sha256 of its text.

        Raises:
            AwayError: the service does not answer, and never said this before.
            StoreError: it refuses: what it said before does not count then; or the text does not have its hash.
        """
        asked = path if not params else f"{path}?{urlencode(_plain(params))}"
        return self._now_or_before(asked, patience, partial(self._service.fetch, path, params), is_hashed)

    def ask(self, path: str, body: str) -> str:
        """Return the text of an answer to a question that is posted and changes nothing, as `read` does."""

        def asking(*, etag: str | None, patience: Patience) -> Answer:
            return self._service.post(path, body, patience)

        return self._now_or_before(f"{path} {body}", PATIENT, asking)

    def _now_or_before(self, asked: str, patience: Patience, fetch: Fetch, is_hashed: bool = False) -> str:
        kept = self._cache.recalled(asked)
        if kept is not None and is_hashed and not _has_hash(kept.body.encode(), kept.etag):
            kept = None
        if kept is not None and self.is_away:
            return self._old(kept)
        try:
            answer = fetch(etag=kept.etag if kept else None, patience=BRISK if kept else patience)
        except AwayError as error:
            self.went_away(error)
            if kept is None:
                raise
            return self._old(kept)
        self._away_until_s = self._clock()
        if answer.status == NOT_MODIFIED and kept is not None:
            self._cache.keep(asked, kept.body, kept.etag)  # it is as new as what is said now
            return kept.body
        if is_hashed and not _has_hash(answer.body, answer.etag):
            raise StoreError(f"{self._service.url} sent a text for {asked} that does not have its hash; ask again")
        body = answer.body.decode()
        self._cache.keep(asked, body, answer.etag)
        return body

    def went_away(self, error: AwayError) -> None:
        """Remember that the service did not answer just now."""
        self._away_until_s = self._clock() + AWAY_S
        self.note = " ".join(str(error).split())

    def _old(self, kept: Kept) -> str:
        """Return what was said before; the note tells of the oldest that was used."""
        self._oldest = min(kept.at, self._oldest or kept.at)
        self.note = f"{self._service.url} does not answer; what it said on {self._oldest[:19]} UTC is used"
        return kept.body


def _has_hash(body: bytes, etag: str | None) -> bool:
    return etag is not None and tag_of(etag) == hashlib.sha256(body).hexdigest()


def _plain(params: Params) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in sorted(params.items()) if value is not None]
