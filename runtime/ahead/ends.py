"""How likely a sequence is to end with a round, told by what rounds have kept."""

from __future__ import annotations

from collections.abc import Sequence as Many

MOST_LOST = 0.02  # of rounds that are launched behind others: about as much of a round is what each saves


class Ends:
    """How many tokens a sequence keeps in a round, and so how likely one is to end with the next round.

    A round that is launched behind another one is lost where a sequence leaves with that: then the device has computed
    for nothing. What it saves is little: else the host launches it as soon as it knows that nobody leaves.
    """

    def __init__(self, most: int) -> None:
        """Know nothing of rounds that keep at most so many tokens."""
        self._kept = [0] * (most + 1)  # how often so many
        self._most = most

    def note(self, kept: Many[int]) -> None:
        """Take note of what sequences have kept in a round."""
        for tokens in kept:
            self._kept[min(tokens, self._most)] += 1

    def are_likely(self, left: Many[int]) -> bool:
        """Whether any sequence ends likelier with a round than a round in vain pays, told what each may still emit."""
        none, rounds = 1.0, sum(self._kept)
        for tokens in left:
            if tokens <= self._most:
                none *= 1.0 - (sum(self._kept[max(tokens, 0) :]) + 1) / (rounds + 1)
        return none < 1.0 - MOST_LOST
