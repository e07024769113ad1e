"""Timed calls of one profile in a local file, so that none waits for a network and none is lost with the process.

One JSON value a line, only appended, under a lock: the profile's key first, then visits and changes of its state.
Processes of one machine in the same profile see each other's lines before they write.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal

from ...errors import SpectuneError, StoreError
from ...profiler.records.visit import Visit
from ...profiler.records.wire import from_json, to_json
from ..sources import content_hash
from ..wire import OpenedProfile
from .cache import files_by_age, made

State = Literal["open", "finished", "abandoned"]
SUFFIX = ".jsonl"
CLOSED_KEPT_S = 7 * 86_400.0  # how long the file of a closed profile tells latecomers so


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLine:
    """One line of a spool: one of its fields is set."""

    key: str | None = None  # of the profile; only in the first line
    visit: Visit | None = None
    surfaces: bool = False  # the surfaces are finished: the visits before this line are done with
    state: State | None = None


@dataclass(slots=True)
class VisitSpool:
    """The file of one profile, and what it says as far as it was read."""

    file: Path
    visits: dict[int, Visit] = field(default_factory=dict)  # by ordinal; those that are not done with
    state: State = "open"
    has_surfaces: bool = False
    key: str | None = None
    _read_to: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the profile takes more, as far as this file was read."""
        return self.state == "open"

    def begin(self, key: str) -> None:
        """Make or read the file; raise StoreError where the folder cannot be written, or the file is damaged."""
        made(self.file.parent)
        with self._held(os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size == 0:
                self._append(descriptor, SpoolLine(key=key))

    def add(self, visit: Visit) -> bool:
        """Write a visit, or return False where its ordinal is taken or the profile closed; or raise StoreError."""
        with self._held() as descriptor:
            if not self.is_open or visit.ordinal in self.visits:
                return False
            self._append(descriptor, SpoolLine(visit=visit))
            return True

    def learn(self) -> None:
        """Read what other processes have written."""
        with self._held():
            pass

    def mark_surfaces(self) -> None:
        """Write down that the visits so far are done with."""
        with self._held() as descriptor:
            self._append(descriptor, SpoolLine(surfaces=True))

    def close(self, state: State) -> None:
        """Write down that the profile takes nothing more."""
        with self._held() as descriptor:
            self._append(descriptor, SpoolLine(state=state))

    @contextmanager
    def _held(self, flags: int = 0) -> Iterator[int]:
        """Lock the file, and read what others have added."""
        with self._lock:
            try:
                descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | flags, 0o600)
            except OSError as error:
                raise StoreError(f"cannot use {self.file} ({error.strerror}); start the command again") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._catch_up(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)  # which ends the lock

    def _append(self, descriptor: int, line: SpoolLine) -> None:
        """Write one line whole or not at all; it outlives the process once this returns."""
        text = to_json(line).encode() + b"\n"
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, text)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise StoreError(f"cannot write {self.file} ({error.strerror}); free some space") from error
        if written != len(text):
            os.ftruncate(descriptor, size)
            raise StoreError(f"cannot write {self.file} (the disk is full); free some space")
        self._catch_up(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Read the lines that were added since the last look; half a line of a crashed machine is cut off."""
        size = os.fstat(descriptor).st_size
        if size < self._read_to:  # another file under the same name
            self.visits, self.state, self.has_surfaces, self._read_to = {}, "open", False, 0
        if size == self._read_to:
            return
        text = os.pread(descriptor, size - self._read_to, self._read_to)
        whole = text.rfind(b"\n") + 1
        for line in text[:whole].splitlines():
            self._take(line)
        self._read_to += whole
        if whole < len(text):
            os.ftruncate(descriptor, self._read_to)

    def _take(self, text: bytes) -> None:
        try:
            line = from_json(SpoolLine, text)
        except SpectuneError as error:
            raise StoreError(f"{self.file} was damaged ({error}); start over with --fresh") from error
        if line.key is not None:
            self.key = line.key
        if line.surfaces:
            self.visits, self.has_surfaces = {}, True
        if line.state is not None:
            self.visits, self.state = {}, line.state
        if line.visit is not None:
            self.visits[line.visit.ordinal] = line.visit


def begun_spool(folder: Path, key: str, opened: OpenedProfile) -> VisitSpool:
    """Return the spool of a profile; its time of beginning distinguishes it from another that once had its number."""
    begun = content_hash(opened.begun)[:12]
    spool = VisitSpool(file=folder / f"{opened.profile_id}-{begun}{SUFFIX}")
    spool.begin(key)
    return spool


def abandon_others(spool: VisitSpool) -> None:
    """Mark a spool key's other open profiles as abandoned, for processes here; forget long closed files."""
    for file, facts in files_by_age(spool.file.parent, SUFFIX):
        if file == spool.file:
            continue
        other = VisitSpool(file=file)
        try:
            other.learn()
        except StoreError:  # damaged: nobody can go on with it either
            continue
        if other.state == "open" and other.key == spool.key:
            other.close("abandoned")
        elif other.state != "open" and time.time() - facts.st_mtime > CLOSED_KEPT_S:
            file.unlink(missing_ok=True)
