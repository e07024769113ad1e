"""A service's earlier answers: revalidated by their ETag, and used when the service does not answer."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import SpectuneError, StoreError
from ..profiler.records.wire import from_json, to_json
from .remote_folder import files_by_age, remove, write_whole
from .tables import utc_now

MOST_ANSWERS = 512
MOST_BYTES = 64 * 2**20  # of all answers of one service together
SUFFIX = ".json"


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
        return _hash(self.body) == self.body_hash


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
        kept = Kept(asked=asked, at=utc_now(), etag=etag, body=body, body_hash=_hash(body))
        with suppress(StoreError):
            write_whole(self._file(asked), to_json(kept))
            self._make_room()

    def forget(self, asked: str) -> None:
        """Keep an answer no longer."""
        remove(self._file(asked))

    def _file(self, asked: str) -> Path:
        return self._folder / f"{_hash(asked)[:32]}{SUFFIX}"

    def _make_room(self) -> None:
        held = 0
        for number, (file, facts) in enumerate(files_by_age(self._folder), start=1):
            held += facts.st_size
            if number > MOST_ANSWERS or held > MOST_BYTES:
                remove(file)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
