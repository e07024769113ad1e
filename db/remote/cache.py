"""A service's earlier answers on this machine: revalidated by ETag, and used, with a note, when it does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TypeVar
from urllib.parse import urlencode

from ...errors import SpectuneError, StoreError
from ...profiler.records.wire import from_json, to_json
from ...profiler.remembered import CACHE_VARIABLE, cache_folder
from ..sources import content_hash
from ..sql.tables import utc_now
from ..url import ServiceUrl
from ..wire import tag_of
from .service import ABSENT, CONFLICT, Params, ServiceClient, params_of
from .transport import BRISK, NOT_MODIFIED, PATIENT, AwayError, ExponentialBackoff, RefusedError, ServiceAnswer

SERVICES = "services"
MOST_ANSWERS = 512
MOST_BYTES = 64 * 2**20  # of all answers of one service together, and of all that waits for it
SUFFIX = ".json"
AWAY_S = 30.0  # how long a service that did not answer is not asked again for what is kept
Record = TypeVar("Record")
Fetch = Callable[[str | None, ExponentialBackoff], ServiceAnswer]  # of an ETag: what had it may be answered with 304
Understand = Callable[[str, str | None], Record]  # of a text and its ETag; raises StoreError where it is another thing


def service_folder(url: ServiceUrl) -> Path:
    """Return the folder of one service: of its URL, whatever the token."""
    return cache_folder() / SERVICES / url.folder_name


def made(folder: Path) -> Path:
    """Return a folder that is there, for this user alone; raise StoreError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder} ({error.strerror}); set {CACHE_VARIABLE}") from error
    return folder


def write_whole(file: Path, text: str) -> None:
    """Write a file in one step: no reader, and no crash, sees half of it; raise StoreError where it cannot."""
    partial = file.with_name(f"{file.name}.{os.getpid()}-{get_ident()}.partial")
    made(file.parent)
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        remove(partial)
        raise StoreError(f"cannot write {file} ({error.strerror}); free some space or set {CACHE_VARIABLE}") from error


def remove(file: Path) -> None:
    """Remove a file; one that is gone, or whose folder may not be written, stays as it is."""
    with suppress(OSError):
        file.unlink()


def files_by_age(folder: Path, suffix: str = "") -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a folder's files and facts, last written first; without a suffix half-written ones, too."""
    found: list[tuple[Path, os.stat_result]] = []
    for file in folder.glob(f"*{suffix}"):
        try:
            found.append((file, file.stat()))
        except OSError:
            continue
    yield from sorted(found, key=lambda each: (each[1].st_mtime_ns, each[0].name), reverse=True)


def make_room(folder: Path, most: int) -> None:
    """Remove the oldest files of a folder beyond so many, or beyond `MOST_BYTES`."""
    held = 0
    for number, (file, facts) in enumerate(files_by_age(folder), start=1):
        held += facts.st_size
        if number > most or held > MOST_BYTES:
            remove(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One answer as it was."""

    asked: str  # path and parameters
    at: str  # UTC, ISO 8601: when the service last said so
    etag: str | None
    body: str
    body_hash: str  # sha256 of the body

    @property
    def is_whole(self) -> bool:
        """Whether the body is the one that was written."""
        return content_hash(self.body) == self.body_hash


class AnswerCache:
    """Answers of one service on disk; damaged ones are as good as absent, and the oldest make room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recalled(self, asked: str) -> Kept | None:
        """Return the earlier answer, None where nothing whole is stored."""
        try:
            kept = from_json(Kept, self._file(asked).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SpectuneError):
            return None
        return kept if kept.asked == asked and kept.is_whole else None

    def keep(self, asked: str, body: str, etag: str | None) -> None:
        """Store an answer as the newest; one that cannot be written is left out, and nothing else happens."""
        if len(body) > MOST_BYTES // 4:  # it would push out everything else
            return
        kept = Kept(asked=asked, at=utc_now(), etag=etag, body=body, body_hash=content_hash(body))
        with suppress(StoreError):
            write_whole(self._file(asked), to_json(kept))
            make_room(self._folder, MOST_ANSWERS)

    def forget(self, asked: str) -> None:
        """Keep an answer no longer."""
        remove(self._file(asked))

    def _file(self, asked: str) -> Path:
        return self._folder / f"{content_hash(asked)[:32]}{SUFFIX}"


class CachedReader:
    """Reads cached on disk once understood, for any thread; `note` is "" while every answer was the service's own."""

    def __init__(self, service: ServiceClient, cache: AnswerCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        self._service, self._cache, self._clock = service, cache, clock
        self._away_until_s = clock()
        self._oldest = ""  # UTC, ISO 8601: of what was used although it may be out of date

    @property
    def is_away(self) -> bool:
        """Whether the service did not answer a moment ago."""
        return self._clock() < self._away_until_s

    def get(
        self, kind: type[Record], path: str, params: Params | None = None, patience: ExponentialBackoff = PATIENT
    ) -> Record:
        """Return one record of a path with its query; `patience` is for a request without a cached answer.

        AwayError: the service does not answer, and never did. StoreError: it refuses, or answers something else.
        """
        asked = path if not params else f"{path}?{urlencode(sorted(params_of(params)))}"
        fetch = partial(self._service.fetch, path, params)
        return self._now_or_before(asked, patience, fetch, lambda text, _: self._service.read(kind, text.encode()))

    def text(self, path: str) -> str:
        """Return a text whose ETag is its sha256; errors are those of `get`, or StoreError for another hash."""

        def whole(text: str, etag: str | None) -> str:
            if etag is None or tag_of(etag) != content_hash(text):
                raise StoreError(f"{self._service.url} sent a text for {path} that does not have its hash; ask again")
            return text

        return self._now_or_before(path, PATIENT, partial(self._service.fetch, path, None), whole)

    def ask(self, path: str, body: str, understand: Callable[[str], Record]) -> Record:
        """Return the answer to a question that is posted and changes nothing, as `get` does."""

        def fetch(_: str | None, patience: ExponentialBackoff) -> ServiceAnswer:
            return self._service.post(path, body, patience)

        return self._now_or_before(f"{path} {body}", PATIENT, fetch, lambda text, _: understand(text))

    def went_away(self, error: AwayError) -> None:
        """Remember that the service did not answer just now."""
        self._away_until_s = self._clock() + AWAY_S
        self.note = " ".join(str(error).split())

    def _now_or_before(
        self, asked: str, patience: ExponentialBackoff, fetch: Fetch, understand: Understand[Record]
    ) -> Record:
        kept = self._kept(asked, understand)
        if kept is not None and self.is_away:
            return self._old(*kept)
        try:
            answer = fetch(kept[0].etag if kept else None, BRISK if kept else patience)
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
