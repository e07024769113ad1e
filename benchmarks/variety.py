"""How much a text repeats itself: a weak model loops under greedy decoding, which flatters n-gram drafting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def distinct_share(texts: Iterable[Sequence[int]], n: int = 4) -> float:
    """Return the share of distinct n-grams of each text, averaged over texts that have any.

    Source: distinct-n, Li et al. 2016, arXiv:1510.03055.
    """
    shares = []
    for text in texts:
        grams = [tuple(text[start : start + n]) for start in range(len(text) - n + 1)]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return sum(shares) / len(shares)
