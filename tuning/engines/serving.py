"""A server that `tune` starts, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from ...engines.bundle import Bundle
from ...engines.server_engine import Source, Start
from ...errors import RequestError
from ...planner.engines.served_choice import LatencyBounds
from .loads import Loaded

MOST_STARTS = 8
Progress = Callable[[str, float], None]  # a message and the share that is done
Save = Callable[[Bundle], None]


class Serving(Protocol):
    """A server that can be started with any drafts."""

    @property
    def takes_table(self) -> bool:
        """Whether one start may draft other lengths at other concurrencies."""
        ...

    @property
    def version(self) -> str:
        """The engine's version; "" before the first start."""
        ...

    def sources(self) -> Sequence[Source]:
        """Return what can draft; called after the first start."""
        ...

    def started(self, start: Start) -> AbstractContextManager[Loaded]:
        """Start it; leaving the context stops it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """A request to `tune`; `longest` counts drafted tokens, `most_starts` includes those of an interrupted run."""

    concurrencies: tuple[int, ...]
    longest: int = 8
    most_starts: int = MOST_STARTS
    bounds: LatencyBounds = field(default_factory=LatencyBounds)

    def __post_init__(self) -> None:
        if not self.concurrencies or min(self.concurrencies) < 1 or self.longest < 1 or self.most_starts < 2:
            raise RequestError(f"a tuning needs concurrencies, a length and 2 starts or more, got {self}")
