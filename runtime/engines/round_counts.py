"""Counters from an engine's single rounds."""

from __future__ import annotations

from .measured import EngineCounters


class RoundCounts:
    """Drafted and accepted tokens of all rounds so far."""

    def __init__(self) -> None:
        self._drafts = self._drafted = self._accepted = 0
        self._by_position: list[int] = []

    def add(self, drafted: int, kept: int) -> None:
        """Count one round of one sequence; one without draft does not count in `drafts`."""
        self._drafts += drafted > 0
        self._drafted += drafted
        self._accepted += kept
        self._by_position += [0] * (drafted - len(self._by_position))
        for position in range(kept):
            self._by_position[position] += 1

    @property
    def counters(self) -> EngineCounters:
        """The sums."""
        return EngineCounters(
            drafts=self._drafts,
            drafted=self._drafted,
            accepted=self._accepted,
            by_position=tuple(self._by_position),
        )
