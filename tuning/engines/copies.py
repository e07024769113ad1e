"""What n-gram drafts would yield on answers, before a server is started for them.

Words replace tokens: a hit of three words and its length are nearly those of tokens. This is a screen: where even words
almost never repeat, a start that drafts by n-grams shows nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from ...planner.strategies.lookup import find_continuation

NGRAM, LENGTH = 3, 8
PIECE = re.compile(r"\w+|\s+|[^\w\s]")
SCREEN = 1.05  # tokens of a round, below which no n-gram drafts are tried


def tokens_per_round(prompt: str, answer: str) -> float:
    """Return the tokens of a round where `LENGTH` words are copied behind the latest place of the last `NGRAM`."""
    history, words = PIECE.findall(prompt), PIECE.findall(answer)
    numbers: dict[str, int] = {}
    text = [numbers.setdefault(word, len(numbers)) for word in (*history, *words)]
    at, rounds = len(history), 0
    while at < len(text):
        copied = find_continuation(text[:at], LENGTH, max_ngram=NGRAM, min_ngram=NGRAM)
        behind = text[at : len(text) - 1]  # a round yields a token of its own
        accepted = sum(takewhile(bool, map(eq, copied, behind)))
        at, rounds = at + accepted + 1, rounds + 1
    return len(words) / rounds if rounds else 1.0


def mean_tokens_per_round(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the mean over pairs of prompt and answer."""
    return sum(tokens_per_round(prompt, answer) for prompt, answer in pairs) / max(len(pairs), 1)
