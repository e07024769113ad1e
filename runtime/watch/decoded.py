"""Rounds that another setup would have needed for decoded texts: computed, without running it, once they have ended.

Verification matches the target's own draw, so a text does not depend on how it is decoded. The text alone then gives
the rounds of a setup without model: plain decoding takes one a token, and copies are drafted again by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from ...planner.inputs import LOOKUP
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.text import TextPolicy
from ...planner.strategies.texts import TextState
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..engine.step_output import StepOutput
from ..sampling.acceptance import accept

Stretch = tuple[int, int]  # of a text: its first place, and the one behind its last
TextRounds = list[tuple[StepConfig, int]]  # of one text: how each was asked to be run, and the tokens it kept
NOTHING = -1  # no token


class DecodedTexts:
    """The rounds of running texts."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[int, TextRounds] = {}  # by index

    def note(self, done: StepOutput, asked: StepConfig) -> list[tuple[Sequence, TextRounds]]:
        """Add a round; return the texts that ended in it and were followed from their beginning."""
        for index in done.joined:  # whoever had the number before ended outside of rounds
            self._running.pop(index, None)
        if len(self._running) > len(done.sequences):  # what was cancelled is not told
            self._running = {index: self._running[index] for index in done.sequences if index in self._running}
        for index, kept in zip(done.sequences, done.kept, strict=True):
            self._running.setdefault(index, []).append((asked, kept))
        ended = ((sequence, self._running.pop(sequence.index)) for sequence in done.finished)
        return [(text, rounds) for text, rounds in ended if len(text.emitted) == 1 + sum(kept for _, kept in rounds)]


def stretches_by(setup: StepConfig, rounds: TextRounds, prompt: int) -> list[Stretch]:
    """Return where a text was decoded by this setup object; the token after the prompt is from no round."""
    found: list[Stretch] = []
    end = prompt + 1
    for asked, kept in rounds:
        start, end = end, end + kept
        if asked is setup and found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        elif asked is setup:
            found.append((start, end))
    return found


def is_told_by_texts(setup: StepConfig) -> bool:
    """Whether a text alone gives the rounds that it takes by a setup."""
    return isinstance(setup.policy, PlainPolicy) or (setup.drafter == LOOKUP and isinstance(setup.policy, TextPolicy))


def rounds_along(setup: StepConfig, tokens: Many[int], stretches: Many[Stretch]) -> float:
    """Return how many rounds a setup takes for ordered stretches of a text; see `is_told_by_texts`."""
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
    """Return how many of the following tokens a round behind the committed ones emits."""
    tokens, parents, depths = state.draft(committed, policy).tolist()
    draws = [following[depth] if depth < len(following) else NOTHING for depth in depths]
    return min(len(accept(tokens, parents, len(tokens), draws).drawn), len(following))
