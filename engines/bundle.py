"""Everything that was measured on a server, as one JSON document without keys, prompts or answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import RequestError, StoreError
from ..profiler.prompt import Prompt
from ..profiler.records.wire import from_json, to_json
from .answers import LoadResult
from .base import Start
from .counters import Counts

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that changes speed and was given: loads of equal setups belong together.

    Attributes:
        engine: by name.
        command: that started it, keys hidden; a URL's is empty.
        drafters: names and paths that the user gave.
        prompts: their number, and the digest of them all.
        sampling: what requests ask for, as JSON.
        concurrencies, requests: of closed loops, and how many requests each of them sends.
        longest: drafted tokens at most.
    """

    engine: str
    command: tuple[str, ...]
    drafters: tuple[tuple[str, str], ...]
    prompts: tuple[int, str]
    sampling: str
    concurrencies: tuple[int, ...]
    requests: int
    longest: int

    @property
    def fingerprint(self) -> str:
        """Of the setup."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One load: what ran, what it met and what the server counted; `copied` as of `Measured`."""

    start: Start
    concurrency: int
    load: LoadResult
    counts: Counts
    copied: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A start that failed, and why."""

    start: Start
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was measured of one setup.

    Attributes:
        format: of this document.
        spectune: the version that wrote it.
        version: of the engine; "" where it is not known yet.
        trials, failures: in the order in which they ran.
        chosen: to be served; None while it is measured.
    """

    format: int = FORMAT
    spectune: str
    setup: Setup
    version: str = ""
    trials: tuple[Trial, ...] = ()
    failures: tuple[Failure, ...] = ()
    chosen: Start | None = None

    def with_trial(self, trial: Trial) -> Bundle:
        """Return it with one more load."""
        return replace(self, trials=(*self.trials, trial))

    def of(self, start: Start) -> Iterator[Trial]:
        """Yield the loads of a start."""
        return (trial for trial in self.trials if trial.start == start)

    def starts(self) -> tuple[Start, ...]:
        """Return the starts that ran, in their order."""
        return tuple(dict.fromkeys(trial.start for trial in self.trials))


def read_bundle(path: Path) -> Bundle:
    """Return the bundle of a file.

    Raises:
        RequestError: it cannot be read, or is none of this format.
    """
    try:
        text = path.read_text(encoding="utf-8")
        told = json.loads(text)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the bundle {path} ({error}); give what tune --bundle wrote") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise RequestError(f"{path} is no bundle of format {FORMAT}; give what tune --bundle wrote")
    try:
        return from_json(Bundle, text)
    except StoreError as error:
        raise RequestError(f"{path}: {error}") from error


def digest_of(prompts: Sequence[Prompt]) -> str:
    """Return what tells these prompts from others."""
    found = hashlib.sha256()
    for prompt in prompts:
        found.update(json.dumps([prompt.text, [(turn.role, turn.content) for turn in prompt.messages]]).encode())
    return found.hexdigest()[:16]
