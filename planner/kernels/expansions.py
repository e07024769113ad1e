"""A recording's expansions, as kernels see them, and keys that sort their children."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Floats32, Ints, Ints32
from .compiled import compiled

ORDER_BITS = 32
NOWHERE = 2**63 - 1  # behind every key
_MAGNITUDE = 0x7FFFFFFF


class Expansions(NamedTuple):
    """The arrays of a Recording, which says what they hold.

    A position's own expansions are bounds[row]:bounds[row + 1], its root's the first; an end of a text has none.
    """

    bounds: Ints
    child: Ints32
    scores: Floats32
    bits: Ints32  # the scores as they are stored
    hit_rank: Ints


@compiled
def key_of(expansions: Expansions, node: int, rank: int, order: int) -> int:
    """Return a number that is smaller the better a child scores and, of equal scores, the smaller its order is.

    No score is above 0, so without its sign bit a score is stored as a whole number that grows as the score falls.

    Args:
        order: from 0 to below 2**32.
    """
    key: int = np.int64(expansions.bits[node, rank] & _MAGNITUDE) << ORDER_BITS  # type: ignore[assignment]  # np.int64
    return key | order


@compiled
def bring_near(expansions: Expansions, row: int) -> int:
    """Read a position's expansions once from end to end: in order memory is fast, and a search goes to and fro.

    Returns:
        Nothing of use; it keeps the compiler from leaving the reads out.
    """
    mixed = 0
    for node in range(expansions.bounds[row], expansions.bounds[row + 1]):
        mixed ^= expansions.bits[node, 0] ^ expansions.child[node, 0]
    return mixed
