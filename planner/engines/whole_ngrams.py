"""Prompt lookup as llama.cpp's `ngram-simple` does it, at every position of recorded texts.

The text's last n tokens are looked for, latest occurrence first, in all but its newest token, which is not copied
either; its first place does not count. What follows is copied if it has n tokens or more, and the text more than
n-gram, copy and two tokens together. So a loop of n tokens or fewer, where other lookups shine, gives no draft.

Source: its rounds on texts of real models, which tests check; documented nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import PlanError
from ..records.draft import Ints
from ..records.recording import Text
from ..records.results import PositionResults, same_everywhere
from ..strategies.lookup import LookupPolicy


def whole_ngram_results(
    texts: Sequence[Text], ngram: int, lengths: Sequence[int]
) -> Iterator[tuple[LookupPolicy, PositionResults]]:
    """Yield what copies of each length give at every position; `ngram` tokens are looked up; PlanError: one below 1."""
    if ngram < 1 or min(lengths, default=1) < 1:
        raise PlanError(f"a lookup needs n-grams and copies of 1 token or more, got {ngram} and {list(lengths)}")
    found = [_found(np.array([*text.prompt, *text.continuation]), len(text.prompt) + 1, ngram) for text in texts]
    known, there, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for length in lengths:
        drafted = np.minimum(there, length)
        drafted = np.where((drafted >= ngram) & (known > ngram + length + 2), drafted, 0)
        yield (
            LookupPolicy(length=length, max_ngram=ngram, min_ngram=ngram),
            PositionResults(
                accepted=np.minimum(right, drafted),
                sizes=1 + drafted,
                censored=np.zeros(len(drafted), dtype=np.bool_),
                widths=same_everywhere(()),
            ),
        )


def _found(text: Ints, first: int, ngram: int) -> tuple[Ints, Ints, Ints]:
    """Return three arrays (positions + 1,): tokens known there, tokens to copy, and how many of these come next.

    `text` (tokens,) is prompt and continuation, `first` the tokens known at the first position.
    """
    known = np.arange(first, len(text) + 1)
    there, right = np.zeros((2, len(known)), dtype=np.int64)
    for row, end in enumerate(known[:-1]):  # behind the last one nothing is drafted
        begins = np.arange(1, max(end - ngram - 1, 1))  # of earlier n-grams; their copies end before the newest token
        for place in range(ngram):
            begins = begins[text[begins + place] == text[end - ngram + place]]
        if len(begins):
            copied = text[begins[-1] + ngram : end - 1]
            ahead = text[end : end + len(copied)]
            differs = np.flatnonzero(copied[: len(ahead)] != ahead)
            there[row], right[row] = len(copied), differs[0] if len(differs) else len(ahead)
    return known, there, right
