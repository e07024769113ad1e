"""What an engine provides so that its server can be tuned over HTTP: commands, what drafts, and counts."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, ClassVar

from ..errors import MeasurementError, RequestError
from ..planner.engines.served import PLAIN
from .answers import LoadResult
from .counters import CounterNames, CounterPage, Counts, counts_between, page_of
from .load import Address
from .setting import EngineDrafter, Setting, Stage

PLAIN_LABEL = "plain decoding"
Lengths = Mapping[int, int]  # drafted tokens by concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What drafts: a draft model or n-grams.

    `setting` is of the longest chain; other lengths differ in `length` alone. `checked` names the engine's versions
    that ran here with it; "parsed only" where none did. `kept` are options of the command's own drafting that stay.
    """

    name: str
    is_model: bool
    setting: Setting
    checked: str = "parsed only"
    kept: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a server: what drafts, and how many tokens at each concurrency; all 0 is plain decoding."""

    source: str
    lengths: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, source: str, lengths: Lengths) -> Start:
        """Return a start; with no drafted tokens it is plain decoding, whatever the source."""
        pairs = tuple(sorted(lengths.items()))
        return cls(source=source if any(lengths.values()) else PLAIN, lengths=pairs)

    @property
    def is_table(self) -> bool:
        """Whether lengths differ by concurrency."""
        return len({length for _, length in self.lengths}) > 1

    @property
    def longest(self) -> int:
        """Most tokens drafted."""
        return max(length for _, length in self.lengths)

    def at(self, concurrency: int) -> int:
        """Return the tokens drafted at a concurrency."""
        return dict(self.lengths)[concurrency]

    @property
    def label(self) -> str:
        """A readable name."""
        if self.source == PLAIN:
            return PLAIN_LABEL
        if not self.is_table:
            return f"{self.source}, {self.longest} tokens"
        table = ", ".join(f"{length} at {concurrency}" for concurrency, length in self.lengths)
        return f"{self.source}, tokens by concurrency: {table}"


def stages_of(lengths: Lengths) -> tuple[Stage, ...]:
    """Return ranges of batches for lengths that were measured at some concurrencies.

    A threshold is the geometric mean of two concurrencies, the farthest from both: a running batch strays a few below
    its concurrency, and near a threshold the length would change from step to step.
    """
    stages: list[Stage] = []
    places = sorted(lengths)
    for place, concurrency in enumerate(places):
        is_last = place + 1 == len(places)
        last = None if is_last else max(concurrency, int((concurrency * places[place + 1]) ** 0.5))
        first = 1 if not stages or stages[-1].last is None else stages[-1].last + 1
        if stages and stages[-1].length == lengths[concurrency]:
            first = stages.pop().first
        stages.append(Stage(first=first, last=last, length=lengths[concurrency]))
    return tuple(stages)


class WrittenFile(str):
    """A word of a command that names a file with some `text`: it is written before the command starts."""

    text: str

    @classmethod
    def of(cls, name: str, text: str) -> WrittenFile:
        """Return the word; its name distinguishes texts."""
        place = PurePath(name)
        found = cls(f"{place.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}{place.suffix}")
        found.text = text
        return found


def written_files(command: Sequence[str]) -> dict[str, str]:
    """Return names and texts of the files that a command reads and that are written for it."""
    return {str(word): word.text for word in command if isinstance(word, WrittenFile)}


def placed(command: Sequence[str], folder: Path) -> list[str]:
    """Write a command's files to a folder, and return the command that reads them there."""
    for name, text in written_files(command).items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / word) if isinstance(word, WrittenFile) else word for word in command]


def scraped(address: Address) -> CounterPage:
    """Return a server's page of counters; MeasurementError where it shows none."""
    answer = address.get("/metrics")
    if answer.is_error:
        raise MeasurementError(
            f"{address.url}/metrics answers {answer.status_code}; let the server show its counters, llama.cpp with "
            "--metrics"
        )
    return page_of(answer.text)


class ServerEngine(ABC):
    """The part `server.py` of an engine's folder; most count by the difference of two Prometheus pages."""

    name: ClassVar[str]  # as in `table.py`
    health: ClassVar[str] = "/health"  # the path that answers 200 once the models are loaded
    takes_table: ClassVar[bool]  # whether one start may draft other lengths at other batches
    longest_first: ClassVar[bool] = False  # whether the smallest batch must have the longest of them
    counters: ClassVar[CounterNames]  # of those with such pages
    example: ClassVar[str]  # of a command
    advice: ClassVar[str] = "run the command by hand to see why"  # where it does not start

    @abstractmethod
    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without drafting options; counters and all else stay."""

    @abstractmethod
    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters; all else stays."""

    @abstractmethod
    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return what can draft: draft models that the command or the user names, then n-grams."""

    @abstractmethod
    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the options that make a plain command draft."""

    def joined(self, plain: Sequence[str], flags: Sequence[str]) -> list[str]:
        """Return a plain command with the options that make it draft."""
        return [*plain, *flags]

    def version(self, address: Address) -> str:
        """Return the version that a running server names."""
        return str((json_at(address, "/version") or {}).get("version", ""))

    def body(self) -> Mapping[str, Any]:
        """Return fields of every request: no answer is read from an earlier one's cache, and each counts its drafts.

        None are needed where that cache is empty after a start and finds equal beginnings alone: each prompt is sent
        once.
        """
        return {}

    def page(self, address: Address) -> CounterPage:
        """Return the counters of a running server; MeasurementError where it shows none."""
        return scraped(address)

    def counts(self, after: CounterPage, before: CounterPage, load: LoadResult, model: str) -> Counts:
        """Return what was counted of a load between two pages; MeasurementError where that is unknown."""
        return counts_between(after, before, self.counters, model if self.counters.has_model else "")


def json_at(address: Address, path: str) -> Any:  # Any: JSON values
    """Return the JSON at a path; None where there is none."""
    answer = address.get(path)
    try:
        return answer.json() if answer.is_success else None
    except ValueError:
        return None


def drafter_named(name: str, path: str, refused: Callable[[str], str] = lambda _: "") -> EngineDrafter:
    """Return a draft model that the user names; RequestError where the engine cannot read such a path."""
    if reason := refused(path):
        raise RequestError(f"the drafter {name}: {reason}")
    return EngineDrafter(name=name, path=path, form="model")
