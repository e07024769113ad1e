"""The choice against the server as it was: both are started in turns, with the same requests, and compared.

The times of every load are scaled to the race's mean pace, by the sentinel's readings around it (`pace.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from ...engines.bundle import Trial
from ...engines.server_engine import Start
from .loads import Loaded, most_drafted, paced_loads, words_of
from .pace import Paces
from .ran import paced_gain, paces_of

BEFORE, AFTER = "as it was", "the choice"
NOT_WORTH = 1.01  # a gain whose interval begins below was not worth it


class Startable(Protocol):
    """A server that any of its commands starts."""

    def running(self, command: Sequence[str]) -> AbstractContextManager[Loaded]:
        """Start it; leaving the context stops it."""
        ...

    def drafter_in(self, command: Sequence[str]) -> str:
        """Return the name of the draft model in a command; "" without one that is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """A race's result at one concurrency: tokens per second of the server as it was and of the choice.

    All are of the race's mean pace. `gain` is the choice's over what was, `interval` its 90 % over prompts, starts and
    paces, `rounds_gain` each pair's.
    """

    concurrency: int
    before: float
    after: float
    gain: float
    interval: tuple[float, float]
    rounds_gain: tuple[float, ...]

    @property
    def is_worth(self) -> bool:
        """Whether the choice is surely faster."""
        return self.interval[0] > NOT_WORTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRace:
    """A race's result at every concurrency, all of its loads by `BEFORE` and `AFTER`, and notes on the pace."""

    rows: tuple[Raced, ...]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]


def race(
    server: Startable,
    before: Sequence[str],
    after: Sequence[str],
    concurrencies: Sequence[int],
    *,
    rounds: int,
    progress: Callable[[str, float], None],
) -> ServedRace:
    """Return a command's gain over another at every concurrency; the turns are ABBA, against drift."""
    commands, trials = {BEFORE: before, AFTER: after}, list[Trial]()

    def reported(number: int, name: str) -> Iterator[int]:
        for concurrency in concurrencies:
            share = len(trials) / (2 * rounds * len(concurrencies))
            progress(f"round {number + 1} of {rounds}, {name}, {concurrency} at once", share)
            yield concurrency

    for number in range(rounds):
        for name in (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE):
            with server.running(commands[name]) as loaded:
                start = Start(source=name, lengths=())
                for trial in paced_loads(loaded, start, reported(number, name), words_of(trials)):
                    lengths = ((trial.concurrency, most_drafted([trial])),)  # known behind the load alone
                    trials.append(replace(trial, start=replace(start, lengths=lengths)))
    drafters = {name: found for name, command in commands.items() if (found := server.drafter_in(command))}
    paces = paces_of(trials, drafters)
    rows = tuple(_raced(one, trials, paces) for one in concurrencies)
    return ServedRace(rows=rows, trials=tuple(trials), notes=tuple(paces.notes()))


def _raced(concurrency: int, trials: Sequence[Trial], paces: Paces) -> Raced:
    own = [one for one in trials if one.concurrency == concurrency]
    before, after = ([one for one in own if one.start.source == name] for name in (BEFORE, AFTER))
    gains = [_speed([fast], paces) / _speed([slow], paces) for slow, fast in zip(before, after, strict=True)]
    low, high = paced_gain(after, before, paces)
    return Raced(
        concurrency=concurrency,
        before=concurrency * _speed(before, paces),
        after=concurrency * _speed(after, paces),
        gain=_speed(after, paces) / _speed(before, paces),
        interval=(min(low, *gains) if len(gains) > 1 else low, max(high, *gains) if len(gains) > 1 else high),
        rounds_gain=tuple(gains),
    )


def _speed(trials: Sequence[Trial], paces: Paces) -> float:
    """Return tokens per second of one request."""
    answers = paces.steadied(trials)
    return 1000.0 * sum(one.tokens for one in answers) / sum(one.e2e_ms for one in answers)
