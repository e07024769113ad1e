"""A recording's expansions for kernels, and keys that sort their children."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Floats32, Ints, Ints32
from .compiled import compiled

ORDER_BITS = 32
NOWHERE = 2**63 - 1  # behind every key
_MAGNITUDE = 0x7FFFFFFF


class Expansions(NamedTuple):
    """The arrays of a `Recording`; see there.

    A position's expansions are bounds[row]:bounds[row + 1], its root's the first; an end of a text has none.
    """

    bounds: Ints
    child: Ints32
    scores: Floats32
    bits: Ints32  # the scores as they are stored
    hit_rank: Ints


@compiled
def key_of(expansions: Expansions, node: int, rank: int, order: int) -> int:
    """Return a number that is smaller the better a child scores and, of equal scores, the smaller `order` < 2**32 is.

    No score is above 0, so a score without its sign bit is an integer that grows as the score falls.
    """
    key: int = np.int64(expansions.bits[node, rank] & _MAGNITUDE) << ORDER_BITS  # type: ignore[assignment]  # np.int64
    return key | order


@compiled
def bring_near(expansions: Expansions, row: int) -> int:
    """Read a position's expansions once in order, which is fast, before a search reads them at random.

    The result is of no use; it prevents the compiler from removing the reads.
    """
    mixed = 0
    for node in range(expansions.bounds[row], expansions.bounds[row + 1]):
        mixed ^= expansions.bits[node, 0] ^ expansions.child[node, 0]
    return mixed
