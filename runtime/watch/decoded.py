"""What another way would have needed along texts that were decoded: known without running it, once they have ended.

Verification matches the target's own draw, so a text is the same by whatever it is decoded. How many rounds a way that
asks no model takes for a stretch of it is then told by the text alone: plain decoding takes one a token, and copies are
drafted again, by the code that drafts them in a round.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from ...planner.inputs import LOOKUP
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.text import TextPolicy
from ...planner.strategies.texts import TextState
from ..requests import Sequence
from ..round import Round
from ..setup import RoundSetup
from ..walk import accept

Stretch = tuple[int, int]  # of a text: its first place, and the one behind its last
TextRounds = list[tuple[RoundSetup, int]]  # of one text: how each was asked to be run, and the tokens it kept
NOTHING = -1  # no token


class DecodedTexts:
    """The rounds of the texts that are under way."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        """Begin with no text."""
        self._running: dict[int, TextRounds] = {}  # by index

    def note(self, done: Round, asked: RoundSetup) -> list[tuple[Sequence, TextRounds]]:
        """Take a round; return the texts that ended in it, but for those that were not followed from their beginning.

        Args:
            done: the round.
            asked: how it was asked to be run, an object that rounds are told apart by.
        """
        for index in done.joined:  # whoever had the number before ended outside of rounds
            self._running.pop(index, None)
        if len(self._running) > len(done.sequences):  # what was cancelled is not told
            self._running = {index: self._running[index] for index in done.sequences if index in self._running}
        for index, kept in zip(done.sequences, done.kept, strict=True):
            self._running.setdefault(index, []).append((asked, kept))
        ended = ((sequence, self._running.pop(sequence.index)) for sequence in done.finished)
        return [(text, rounds) for text, rounds in ended if len(text.emitted) == 1 + sum(kept for _, kept in rounds)]


def stretches_by(setup: RoundSetup, rounds: TextRounds, prompt: int) -> list[Stretch]:
    """Return where a text was decoded by a setup, the very object; behind its prompt is a token that no round kept."""
    found: list[Stretch] = []
    end = prompt + 1
    for asked, kept in rounds:
        start, end = end, end + kept
        if asked is setup and found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        elif asked is setup:
            found.append((start, end))
    return found


def is_told_by_texts(setup: RoundSetup) -> bool:
    """Whether a text tells how many rounds it takes by a setup."""
    return isinstance(setup.policy, PlainPolicy) or (setup.drafter == LOOKUP and isinstance(setup.policy, TextPolicy))


def rounds_along(setup: RoundSetup, tokens: Many[int], stretches: Many[Stretch]) -> float:
    """Return how many rounds a setup takes for some stretches of a text.

    Of a round that would keep tokens beyond a stretch its share counts.

    Args:
        setup: one that `is_told_by_texts`.
        tokens: the whole text.
        stretches: in order.
    """
    if not isinstance(setup.policy, TextPolicy):
        return float(sum(end - start for start, end in stretches))
    state, committed, rounds = TextState(), list[int](), 0.0
    for now, end in stretches:
        while now < end:
            committed += tokens[len(committed) : now]
            kept = _kept(setup.policy, state, committed, tokens[now : now + setup.policy.max_verify_tokens])
            rounds += min(1.0, (end - now) / kept)
            now += kept
    return rounds


def _kept(policy: TextPolicy, state: TextState, committed: Many[int], following: Many[int]) -> int:
    """Return how many of the tokens that follow a round behind the committed ones keeps."""
    tokens, parents, depths = state.draft(committed, policy).tolist()
    draws = [following[depth] if depth < len(following) else NOTHING for depth in depths]
    return min(len(accept(tokens, parents, len(tokens), draws).drawn), len(following))
