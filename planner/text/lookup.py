"""Prompt lookup: the text itself as drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ...errors import PlanError

Occurrence = Literal["first", "last"]
AnyOccurrence = Literal["first", "last", "mapped"]  # and that of an engine's memory, which no text alone tells


def find_continuation(
    tokens: Sequence[int], length: int, max_ngram: int = 3, min_ngram: int = 1, occurrence: Occurrence = "last"
) -> list[int]:
    """Return the tokens that followed the text's last n-gram when it occurred before.

    The longest n-gram of max_ngram..min_ngram that occurred before decides; of several
    occurrences the most recent, or the first as transformers' and vLLM's lookups take it.
    A pure function of the committed text. O(len(tokens)).

    Args:
        tokens: the committed text; an integer array is not copied.
        length: most tokens to return; fewer when the occurrence is near the end.
        max_ngram: longest suffix to look for.
        min_ngram: shortest suffix to look for, >= 1.
        occurrence: which earlier one of the n-gram is copied behind.

    Returns:
        Up to `length` tokens of the text; empty when nothing was found.

    Raises:
        PlanError: an argument is out of range.

    Source: prompt lookup decoding, Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding.
    """
    if length < 1 or not 1 <= min_ngram <= max_ngram:
        raise PlanError(
            f"lookup needs length >= 1 and 1 <= min_ngram <= max_ngram, got {length}, {min_ngram} and {max_ngram}"
        )
    text = np.asarray(tokens, dtype=np.int64)
    ends = np.arange(len(text) - 1)  # last positions of earlier n-grams that may still match
    taken = -1
    for ngram in range(1, max_ngram + 1):
        ends = ends[ends >= ngram - 1]
        ends = ends[text[ends - (ngram - 1)] == text[len(text) - ngram]] if len(ends) else ends
        if not len(ends):
            break
        if ngram >= min_ngram:
            taken = int(ends[-1] if occurrence == "last" else ends[0])
    if taken < 0:
        return []
    return [int(token) for token in text[taken + 1 : taken + 1 + length]]
