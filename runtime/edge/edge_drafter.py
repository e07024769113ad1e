"""The drafter of one device: drafts token after token behind one text, and goes back where the target disagrees."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many

import numpy as np

from ...errors import ModelError
from ...planner.records.draft import is_sure
from ..batch.sequence import Request, Sequence
from ..batch.transfer import fetched_together
from ..drafters.model import ModelDrafter
from ..growth.draft import children_of
from ..models.forward import CausalModel
from ..sampling.acceptance import borne_out
from ..sampling.filters import draft_scores


class EdgeDrafter:
    """Drafts what any model drafter would behind one text, the target's noise included, one forward a token."""

    def __init__(self, model: CausalModel, request: Request, *, most_ahead: int) -> None:
        """Begin a text, whose prompt is read with the first guess; at most `most_ahead` guesses at once."""
        self.forwards = 0
        self._seen = Sequence(request, 0)  # the text, and the guesses behind it
        self._known = len(request.prompt)  # tokens of the text itself
        self._log_probs: list[float] = []  # of the guesses
        self._read = 0  # tokens that the drafter has read
        self._drafter = ModelDrafter(
            model, slots=1, capacity=len(request.prompt) + request.max_new_tokens + most_ahead + 1
        )

    @property
    def text(self) -> list[int]:
        """The known text, prompt included."""
        return self._seen.tokens[: self._known]

    @property
    def guesses(self) -> list[int]:
        """The guesses behind it."""
        return self._seen.tokens[self._known :]

    def guess(self) -> None:
        """Draft one more token; ModelError where scores are not numbers."""
        self._read = len(self._seen.tokens)
        scores = draft_scores(self._drafter.catch_up([self._seen]), [self._seen], None)
        answer = children_of(scores, 1)
        tokens, log_probs = fetched_together(answer.tokens, answer.log_probs)
        log_prob = float(log_probs[0, 0, 0])
        if math.isnan(log_prob):
            raise ModelError("the drafter's logits are not numbers; check its weights and its dtype")
        self._seen.tokens.append(int(tokens[0, 0, 0]))
        self._log_probs.append(log_prob)
        self.forwards += 1

    def is_doubted(self, place: int, confidence: float) -> bool:
        """Whether the guess at a place has less than this probability."""
        return not bool(is_sure(np.array([self._log_probs[place]], dtype=np.float32), confidence)[0])

    def learn(self, base: int, tokens: Many[int]) -> list[int]:
        """Take the tokens behind the first `base` of the text, drop wrong guesses, and return the new tokens."""
        known = base + len(tokens)
        if base > self._known or known <= self._known:
            return []
        new = list(tokens[self._known - base :])
        right = borne_out(self.guesses, new)
        if right == len(new):
            del self._log_probs[:right]
        else:
            self._go_back([*self.text, *new], self._known + right)
        self._known = known
        return new

    def _go_back(self, text: list[int], alike: int) -> None:
        """Go back to a text of which the drafter has read at most the first `alike` tokens correctly."""
        self._seen = Sequence(self._seen.request, 0)  # what it remembered of its tokens is no more true
        self._seen.tokens = text
        self._log_probs.clear()
        self._read = min(self._read, alike)
        self._drafter.rewind([self._read])
