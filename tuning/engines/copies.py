"""What n-gram drafts would yield on answers, before a server is started for them.

Words replace tokens: a hit of three words and its length are nearly those of tokens. This is a screen: where even words
almost never repeat, a start that drafts by n-grams shows nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NGRAM, LENGTH = 3, 8
PIECE = re.compile(r"\w+|\s+|[^\w\s]")
SCREEN = 1.05  # tokens of a round, below which no n-gram drafts are tried


def tokens_per_round(prompt: str, answer: str) -> float:
    """Return the tokens of a round where `LENGTH` words are copied behind the latest place of the last `NGRAM`."""
    history, words = PIECE.findall(prompt), PIECE.findall(answer)
    places: dict[tuple[str, ...], int] = {}
    text = [*history, *words]
    known = NGRAM  # all n-grams that end before here have a place
    at, rounds = len(history), 0
    while at < len(text):
        while known < at:
            places[tuple(text[known - NGRAM : known])] = known
            known += 1
        place = places.get(tuple(text[max(at - NGRAM, 0) : at]))
        accepted = 0 if place is None else _agreeing(text, place, at)
        at, rounds = at + accepted + 1, rounds + 1
    return len(words) / rounds if rounds else 1.0


def mean_tokens_per_round(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the mean over pairs of prompt and answer."""
    return sum(tokens_per_round(prompt, answer) for prompt, answer in pairs) / max(len(pairs), 1)


def _agreeing(text: Sequence[str], place: int, at: int) -> int:
    """Return how many words from `place` on equal those from `at` on, at most `LENGTH`."""
    most = max(min(LENGTH, len(text) - 1 - at, at - place), 0)
    return next((count for count in range(most) if text[place + count] != text[at + count]), most)
