"""The choice against the server as it was: both are started in turns, with the same requests, and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ...engines.answers import RequestResult
from .honest import NamedLoad
from .ran import paired_gain
from .tune import Loaded

BEFORE, AFTER = "as it was", "the choice"
NOT_WORTH = 1.01  # a gain whose interval begins below was not worth it


class Startable(Protocol):
    """A server that any of its commands starts."""

    def running(self, command: Sequence[str]) -> AbstractContextManager[Loaded]:
        """Start it; leaving the context stops it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """A race's result at one concurrency: tokens per second of the server as it was and of the choice.

    `gain` is the choice's over what was, `interval` its 90 % over prompts and starts, `rounds_gain` each pair's.
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


def race(
    server: Startable,
    before: Sequence[str],
    after: Sequence[str],
    concurrencies: Sequence[int],
    *,
    rounds: int,
    progress: Callable[[str, float], None],
) -> tuple[tuple[Raced, ...], tuple[NamedLoad, ...]]:
    """Return a command's gain over another at every concurrency, ABBA against drift, and all loads."""
    loads: list[NamedLoad] = []
    for number in range(rounds):
        for name in (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE):
            with server.running(after if name == AFTER else before) as loaded:
                for concurrency in concurrencies:
                    share = len(loads) / (2 * rounds * len(concurrencies))
                    progress(f"round {number + 1} of {rounds}, {name}, {concurrency} at once", share)
                    found = loaded.measure(concurrency)
                    loads.append(NamedLoad(name=name, load=found.load, counts=found.counts))
    return tuple(_raced(one, loads) for one in concurrencies), tuple(loads)


def _raced(concurrency: int, loads: Sequence[NamedLoad]) -> Raced:
    own = [one for one in loads if one.load.concurrency == concurrency]
    before, after = ([list(one.load.ended) for one in own if one.name == name] for name in (BEFORE, AFTER))
    gains = [_speed(fast) / _speed(slow) for slow, fast in zip(before, after, strict=True)]
    all_before, all_after = (_joined(rounds) for rounds in (before, after))
    low, high = paired_gain(all_after, all_before)
    return Raced(
        concurrency=concurrency,
        before=concurrency * _speed(all_before),
        after=concurrency * _speed(all_after),
        gain=_speed(all_after) / _speed(all_before),
        interval=(min(low, *gains) if len(gains) > 1 else low, max(high, *gains) if len(gains) > 1 else high),
        rounds_gain=tuple(gains),
    )


def _joined(rounds: Sequence[list[RequestResult]]) -> list[RequestResult]:
    """Return the answers of all rounds, each prompt once: times and tokens summed."""
    found: dict[int, RequestResult] = {}
    for answers in rounds:
        for one in answers:
            held = found.get(one.prompt)
            found[one.prompt] = one if held is None else _summed(held, one)
    return list(found.values())


def _summed(one: RequestResult, other: RequestResult) -> RequestResult:
    return RequestResult(
        prompt=one.prompt,
        ttft_ms=one.ttft_ms + other.ttft_ms,
        e2e_ms=one.e2e_ms + other.e2e_ms,
        tokens=one.tokens + other.tokens,
    )


def _speed(answers: Sequence[RequestResult]) -> float:
    return 1000.0 * sum(one.tokens for one in answers) / sum(one.e2e_ms for one in answers)
