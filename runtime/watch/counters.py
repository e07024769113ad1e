"""Sums over the rounds of one cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..batch.step_config import StepConfig
from ..engine.step_output import StepOutput

MOST_DEPTHS = 64  # tokens of one sequence in one round that are told apart


def is_timed(done: StepOutput) -> bool:
    """Return whether the times of a round are possible: clocks, too, may fail."""
    return 0.0 <= done.draft_ms <= done.round_ms < math.inf and 0.0 <= done.verify_ms <= done.round_ms


class RoundSums:
    """Sums over a setup's rounds; `kept[n]` is how often a sequence got n tokens in one, the last all above."""

    __slots__ = ("draft_ms", "faults", "kept", "round_ms", "rounds", "tokens", "verify_ms")

    def __init__(self, setup: StepConfig) -> None:
        self.rounds = self.tokens = self.faults = 0
        self.draft_ms = self.verify_ms = self.round_ms = 0.0
        self.kept = [0] * (min(setup.policy.max_verify_tokens, MOST_DEPTHS) + 1)

    def add(self, done: StepOutput) -> int:
        """Add a round; return its tokens."""
        counts, last = self.kept, len(self.kept) - 1
        tokens = 0
        for kept in done.kept:
            tokens += kept
            counts[kept if kept < last else last] += 1
        self.rounds += 1
        self.tokens += tokens
        self.faults += len(done.faults)
        if is_timed(done):
            self.draft_ms += done.draft_ms
            self.verify_ms += done.verify_ms
            self.round_ms += done.round_ms
        return tokens

    def take(self, other: RoundSums) -> None:
        """Add another tally of the same setup and reset that."""
        for depth, count in enumerate(other.kept):
            self.kept[depth] += count
            other.kept[depth] = 0
        for name in ("rounds", "tokens", "faults", "draft_ms", "verify_ms", "round_ms"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
            setattr(other, name, type(getattr(other, name))())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMeans:
    """The mean round of a block."""

    tokens: float  # of all sequences together
    ms: float  # 0 where no time was told

    @property
    def tokens_per_s(self) -> float:
        """Speed of all sequences; 0 without times."""
        return 1e3 * self.tokens / self.ms if self.ms > 0.0 else 0.0


class RoundBlock:
    """Rounds of one cell at its own batch, until their speed is taken once."""

    __slots__ = ("_ms", "_rounds", "_texts_before", "_tokens")

    def __init__(self) -> None:
        self._rounds = self._tokens = self._texts_before = 0
        self._ms = 0.0

    def add(self, tokens: int, ms: float, texts: int) -> None:
        """Add a round; `texts` is how many have ended so far, anywhere."""
        if not self._rounds:
            self._texts_before = texts
        self._rounds += 1
        self._tokens += tokens
        self._ms += ms

    def is_full(self, texts: int, *, rounds: int, ended: int, longest: int) -> bool:
        """Whether it holds enough rounds and texts, or as many rounds as a block may."""
        is_mixed = self._rounds >= rounds and texts - self._texts_before >= ended
        return is_mixed or self._rounds >= longest

    def close(self) -> BlockMeans:
        """Return the mean of its rounds and start again."""
        means = BlockMeans(tokens=self._tokens / self._rounds, ms=self._ms / self._rounds)
        self._rounds = self._tokens = 0
        self._ms = 0.0
        return means
