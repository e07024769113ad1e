"""Observations that wait for a service that does not answer: one file each, delivered once, in their order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import SpectuneError
from ...profiler.records.wire import from_json, to_json
from .cache import SUFFIX, make_room, remove, write_whole
from .transport import RefusedError

MOST_WAITING = 1000
MOST_AT_ONCE = 20  # that one call delivers
LONGEST_WAIT_S = 30 * 86_400.0  # the service forgets keys later than that: an older one could be kept twice
OF_THE_DOCUMENT = frozenset({400, 404, 409, 413, 415, 422})  # refusals of what is sent, whoever sends it, for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One observation on its way; the key stays the same however often it is sent."""

    plan_id: int
    document: str
    key: str


Deliver = Callable[[Waiting], None]  # raises AwayError or RefusedError


class ObservationQueue:
    """Observations of one service on disk, shared by the processes of one user.

    A file is written once, and removed once it is delivered or refused for good. Two processes may send the same one at
    once: its key makes that one write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def waiting(self) -> list[Path]:
        """Return the files of what waits, the oldest first."""
        return sorted(self._folder.glob(f"*{SUFFIX}"))

    def add(self, waiting: Waiting) -> None:
        """Let a document wait, or raise StoreError; the oldest make room where there are too many."""
        write_whole(self._folder / f"{time.time_ns():020d}-{waiting.key}{SUFFIX}", to_json(waiting))
        make_room(self._folder, MOST_WAITING)

    def deliver(self, send: Deliver, at_most: int = MOST_AT_ONCE) -> bool:
        """Send up to `at_most` waiting ones, oldest first, and return whether none is left; a decoder has other work.

        After AwayError, and RefusedError for this client, what is left waits on.
        """
        files = self.waiting()
        for file in files[:at_most]:
            waiting = self._read(file)
            if waiting is None:
                continue
            try:
                send(waiting)
            except RefusedError as error:
                if error.status not in OF_THE_DOCUMENT:
                    raise
            remove(file)
        return len(files) <= at_most

    def _read(self, file: Path) -> Waiting | None:
        try:
            if time.time() - file.stat().st_mtime > LONGEST_WAIT_S:
                remove(file)
                return None
            return from_json(Waiting, file.read_text(encoding="utf-8"))
        except OSError:  # another process has delivered it
            return None
        except (UnicodeDecodeError, SpectuneError):
            remove(file)
            return None
