"""Drafts from several texts by one call with few arrays: passing each costs as much as copying a token.

One array, `told`, describes the texts: their number; per text its row in memory, its tokens before, and where its new
ones end in this array; then the new tokens, text after text.
"""

from __future__ import annotations

from .arrays import Ints
from .compiled import compiled

ENTRIES = 3  # of each text in what is told


@compiled
def packed(room: Ints, batch: int, drafted: Ints) -> int:
    """Write trees behind their sizes, padded to the largest; return its nodes."""
    most = drafted[:batch].max()
    at = batch
    for part in range(3):
        padding = -1 if part == 0 else part - 1
        for place in range(batch):
            for node in range(most):
                drafted[at] = room[place, part, node] if node < drafted[place] else padding
                at += 1
    return int(most)
