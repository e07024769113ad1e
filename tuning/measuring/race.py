"""Measure several decoders side by side, in turns, so that the machine's moods hit all alike.

All decode the same requests. Each turn, in random order, every entrant decodes an equal share of the tokens.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence, Set
from typing import Protocol

from ...profiler.records.excess import STALL
from ...runtime.batch.sequence import Request
from ...runtime.batch.transfer import wait_for
from ...runtime.engine.engine import Engine
from .decoding import DecodingRun, TimedRound, Traffic, throughput, timed_step


class Entrant(Protocol):
    """One way of decoding the requests."""

    name: str

    def advance(self, share: float) -> None:
        """Decode on until `share` in (0, 1] of all requests' tokens are emitted."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of what was decoded, prompts apart."""


def race(
    entrants: Sequence[Entrant], *, turns: int, seed: int = 0, told: Callable[[float], None] = lambda share: None
) -> None:
    """Let all fresh entrants decode everything, in `turns` shares; `seed` orders them, `told` hears what is done."""
    order = random.Random(seed)
    for turn in range(1, turns + 1):
        field = list(entrants)
        order.shuffle(field)
        for entrant in field:
            entrant.advance(turn / turns)
        told(turn / turns)


class EngineEntrant:
    """Our decoder with one schedule."""

    def __init__(self, name: str, decoder: Engine, requests: Sequence[Request], batch: int) -> None:
        self.name = name
        self._decoder, self._traffic, self._batch = decoder, Traffic(decoder, requests, keeps_full=True), batch
        self._rounds: list[TimedRound] = []
        self._cold: set[int] = set()  # places of the rounds right after another entrant's turn
        self._texts, self._wanted = len(requests), sum(r.max_new_tokens for r in requests)

    def advance(self, share: float) -> None:
        """Decode until `share` of all tokens are emitted or all is done; a GPU first ends what others left."""
        wait_for(self._decoder.device)
        self._cold.add(len(self._rounds))
        while self._emitted() < share * self._wanted and self._step():
            pass

    def _emitted(self) -> int:
        """Tokens emitted, an ended sequence counted with all it might have emitted."""
        return sum(
            s.request.max_new_tokens if s.is_finished else len(s.tokens) - len(s.request.prompt)
            for s in self._traffic.sequences
        )

    def _step(self) -> bool:
        if not self._traffic.refill():
            return False
        self._rounds.append(timed_step(self._decoder))
        return True

    @property
    def run(self) -> DecodingRun:
        """What was decoded, every round as it was timed."""
        texts = tuple(tuple(s.emitted) for s in self._traffic.sequences)
        return DecodingRun(batch=self._batch, rounds=tuple(self._rounds), texts=texts)

    @property
    def settled(self) -> list[TimedRound]:
        """The rounds but for the first of every turn: what a device began before it ran while others took theirs."""
        return [done for place, done in enumerate(self._rounds) if place not in self._cold]

    @property
    def tokens_per_s(self) -> float:
        """Steady-state throughput, stalls of the machine cut.

        A turn's first round meets another entrant's caches, so it counts with the time of others of its shape. Its
        tokens count: turns tend to end on many accepted tokens, and without them copying would look slow.
        """
        ms = undisturbed_ms(self._rounds, self._cold)
        return throughput(self._rounds, ms, self._batch, self._texts)


def undisturbed_ms(rounds: Sequence[TimedRound], cold: Set[int] = frozenset()) -> list[float]:
    """Return the undisturbed milliseconds of rounds, some of which found the caches cold.

    They are cut to STALL times the median of a shape's warm rounds; a cold one counts as their mean, else as timed.
    """
    shapes = [(r.round.verify_tokens, len(r.round.widths), r.round.levels) for r in rounds]
    warm: dict[tuple[int, int, tuple[int, ...]], list[float]] = {}
    for place, (r, shape) in enumerate(zip(rounds, shapes, strict=True)):
        if place not in cold:
            warm.setdefault(shape, []).append(r.ms)
    limits = {shape: STALL * statistics.median(ms) for shape, ms in warm.items()}
    means = {shape: statistics.fmean(min(each, limits[shape]) for each in ms) for shape, ms in warm.items()}
    return [
        means.get(shape, r.ms) if place in cold else min(r.ms, limits[shape])
        for place, (r, shape) in enumerate(zip(rounds, shapes, strict=True))
    ]
