"""How likely a sequence ends with a round, from the tokens emitted in past rounds."""

from __future__ import annotations

from collections.abc import Sequence as Many

MOST_LOST = 0.02  # of rounds that are launched behind others: about as much of a round is what each saves


class Ends:
    """Estimates how likely a sequence ends with the next round, from the tokens emitted in past rounds.

    If one ends, the round launched behind is lost; otherwise launching ahead saves little, since the host soon knows.
    """

    def __init__(self, most: int) -> None:
        self._kept = [0] * (most + 1)  # how often so many
        self._most = most

    def note(self, kept: Many[int]) -> None:
        """Count what each sequence emitted in a round."""
        for tokens in kept:
            self._kept[min(tokens, self._most)] += 1

    def are_likely(self, left: Many[int]) -> bool:
        """Whether it is too likely that a sequence ends with a round; `left` is what each may still emit."""
        none, rounds = 1.0, sum(self._kept)
        for tokens in left:
            if tokens <= self._most:
                none *= 1.0 - (sum(self._kept[max(tokens, 0) :]) + 1) / (rounds + 1)
        return none < 1.0 - MOST_LOST
