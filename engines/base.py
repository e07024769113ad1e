"""What an engine's file provides so that its server can be tuned over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import RequestError
from ..planner.engines.served import PLAIN
from ..runtime.engines.setting import EngineDrafter, Setting, Stage
from .counters import CounterNames
from .load import Address

PLAIN_LABEL = "plain decoding"
Lengths = Mapping[int, int]  # drafted tokens by concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What drafts: a draft model or n-grams.

    `setting` is of the longest chain; other lengths differ in `length` alone. `checked` names the engine's versions
    that ran here with it; "parsed only" where none did.
    """

    name: str
    is_model: bool
    setting: Setting
    checked: str = "parsed only"


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


class ServerEngine(Protocol):
    """An engine whose server is tuned; a new one is a file with this and a line in `table.py`."""

    name: str
    health: str  # the path that answers 200 once the models are loaded
    takes_table: bool  # whether one start may draft other lengths at other batches
    counters: CounterNames
    example: str  # of a command
    advice: str  # what to do where it does not start

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without drafting options; counters and all else stay."""
        ...

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters; all else stays."""
        ...

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return what can draft: draft models that the command or the user names, then n-grams."""
        ...

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the options that make a plain command draft."""
        ...

    def version(self, address: Address) -> str:
        """Return the version of a running server."""
        ...

    def body(self) -> Mapping[str, Any]:
        """Return fields of every request, so that no answer is read from an earlier one's cache."""
        ...


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
