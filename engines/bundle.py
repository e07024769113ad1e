"""All measurements of a server as one JSON document without keys, prompts or answers."""

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
from .counters import Counts
from .sentinel import Reading
from .server_engine import Start

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All given settings that change speed: loads of equal setups belong together.

    `command` has its keys hidden; for a URL it is that and the model. `drafters` are names and paths from the user.
    `prompts` are their number and a digest; `sampling` is JSON. Each closed loop sends `requests`; `longest` counts
    drafted tokens. `files` name what the command reads, by digests of its texts. `model` is what requests call a
    command's model, "" the first served.
    """

    engine: str
    command: tuple[str, ...]
    drafters: tuple[tuple[str, str], ...]
    prompts: tuple[int, str]
    sampling: str
    concurrencies: tuple[int, ...]
    requests: int
    longest: int
    files: tuple[str, ...] = ()
    model: str = ""

    @property
    def fingerprint(self) -> str:
        """A hash of the setup; without a model that of versions which knew none."""
        told = to_json(self).replace(',"model":""', "")  # no text holds it: its quotes would be escaped
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def server(self) -> str:
        """A hash of the engine and the command, or the URL, whatever its loads were."""
        return server_of(self.engine, self.command[:1] if "://" in "".join(self.command[:1]) else self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One load: what ran, its answers and the server's counters; `copied` as in `Measured`.

    `pace` are the sentinel's readings before and after it; empty where there were none.
    """

    start: Start
    concurrency: int
    load: LoadResult
    counts: Counts
    copied: float | None = None
    pace: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A start that failed, and why."""

    start: Start
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """All measurements of one setup; trials and failures in the order in which they ran.

    `spectune` is the version that wrote it, `version` the engine's, "" while unknown; `chosen` is to be served, once
    known.
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


def server_of(engine: str, command: Sequence[str]) -> str:
    """Return the hash of a server, given its command, keys hidden, or its URL alone."""
    return hashlib.sha256(json.dumps([engine, *command]).encode()).hexdigest()[:16]


def read_bundle(path: Path) -> Bundle:
    """Return the bundle of a file; RequestError where it cannot be read or is not of this format."""
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
    """Return a digest of these prompts."""
    found = hashlib.sha256()
    for prompt in prompts:
        found.update(json.dumps([prompt.text, [(turn.role, turn.content) for turn in prompt.messages]]).encode())
    return found.hexdigest()[:16]
