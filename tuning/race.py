"""Measure several ways of decoding side by side, in turns, so that the machine's moods hit all alike.

Every entrant decodes the same requests. The work is cut into equal shares of the tokens; in each
turn every entrant does its share, in random order.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Protocol

from ..runtime.decoder import Decoder
from ..runtime.requests import Request
from ..runtime.requests import Sequence as Decoded
from .decoding import Run, TimedRound, steady_rounds

STALL = 5.0  # a round this many times longer than its like is the machine's stall, and cut to that


class Entrant(Protocol):
    """One way of decoding the requests."""

    name: str

    def advance(self, share: float) -> None:
        """Decode on until `share` in (0, 1] of all requests' tokens are emitted."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of what was decoded, prompts apart."""


def race(entrants: Sequence[Entrant], *, turns: int, seed: int = 0) -> None:
    """Let all entrants decode everything, turn by turn.

    Args:
        entrants: fresh ones.
        turns: shares the work is cut into.
        seed: of the order within turns.
    """
    order = random.Random(seed)
    for turn in range(1, turns + 1):
        field = list(entrants)
        order.shuffle(field)
        for entrant in field:
            entrant.advance(turn / turns)


class DecoderEntrant:
    """Our decoder with one schedule."""

    def __init__(self, name: str, decoder: Decoder, requests: Sequence[Request], batch: int) -> None:
        """Take an empty decoder."""
        self.name = name
        self._decoder, self._requests, self._batch = decoder, requests, batch
        self._sequences: list[Decoded] = []
        self._rounds: list[TimedRound] = []
        self._wanted = sum(r.max_new_tokens for r in requests)

    def advance(self, share: float) -> None:
        """Decode on until `share` of all tokens are emitted, or all requests are done."""
        while self._emitted() < share * self._wanted and self._step():
            pass

    def _emitted(self) -> int:
        """Tokens emitted, an ended sequence counted with all it might have emitted."""
        return sum(
            s.request.max_new_tokens if s.is_finished else len(s.tokens) - len(s.request.prompt)
            for s in self._sequences
        )

    def _step(self) -> bool:
        """Refill, run one timed round; return whether there was anything to do."""
        while len(self._sequences) < len(self._requests) and self._decoder.has_room:
            self._sequences.append(self._decoder.admit(self._requests[len(self._sequences)], len(self._sequences)))
        if not self._decoder.running:
            return len(self._sequences) < len(self._requests)
        start = time.perf_counter_ns()
        done = self._decoder.step()
        self._rounds.append(TimedRound(ms=(time.perf_counter_ns() - start) / 1e6, round=done))
        return True

    @property
    def run(self) -> Run:
        """What was decoded, every round as it was timed."""
        texts = tuple(tuple(s.emitted) for s in self._sequences)
        return Run(batch=self._batch, rounds=tuple(self._rounds), texts=texts)

    @property
    def tokens_per_s(self) -> float:
        """Steady-state throughput, stalls of the machine cut."""
        steady = steady_rounds(self._rounds, self._batch)
        return 1000.0 * sum(sum(r.round.kept) for r in steady) / sum(without_stalls(steady))


def without_stalls(rounds: Sequence[TimedRound]) -> list[float]:
    """Return the rounds' milliseconds, each cut to `STALL` times the median of the rounds of its shape."""
    like: dict[tuple[int, int], list[float]] = {}
    for r in rounds:
        like.setdefault((r.round.verify_tokens, len(r.round.widths)), []).append(r.ms)
    limits = {shape: STALL * statistics.median(ms) for shape, ms in like.items()}
    return [min(r.ms, limits[r.round.verify_tokens, len(r.round.widths)]) for r in rounds]
