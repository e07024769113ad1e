"""Distinct n-grams, counted by hand."""

from __future__ import annotations

import pytest
from variety import distinct_share


@pytest.mark.parametrize(
    ("texts", "n", "share"),
    [
        ([[1, 2, 3, 4, 5]], 4, 1.0),
        ([[1, 1, 1, 1, 1, 1]], 4, 1 / 3),  # one of three
        ([[1, 2, 1, 2, 1]], 2, 2 / 4),  # 12, 21
        ([[1, 2, 3], [1, 1, 1]], 2, (1.0 + 0.5) / 2),  # texts count alike, however long
        ([[1, 2, 3, 4], [9]], 4, 1.0),  # a text too short has no share
    ],
)
def test_the_distinct_share_is_that_of_each_text_averaged(texts: list[list[int]], n: int, share: float) -> None:
    assert distinct_share(texts, n) == pytest.approx(share)
