"""Agreement of a draft with the text."""

from __future__ import annotations

from collections.abc import Sequence


def borne_out(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a draft agree with the text, from the first on."""
    pairs = zip(drafted, text, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(drafted), len(text)))
