"""The running sequences of a lock-step replay: who enters, who leaves, in which slot.

Before a round the next texts enter at the end of the running list; after it, finished ones leave in slot order, each
giving its slot to the last of the list. `fresh` is what a slot committed since it last drafted, 1 after it entered.
"""

from __future__ import annotations

from typing import NamedTuple

from .arrays import Ints
from .compiled import compiled


class Numbering(NamedTuple):
    """The arrays of `recorded.Rows`, which says what they hold."""

    starts: Ints
    left: Ints
    contexts: Ints
    text_of: Ints


class Rounds(NamedTuple):
    """The arrays of a `replay.Replay`, which says what they hold, or room for them."""

    contexts: Ints
    nodes: Ints
    catch_up: Ints
    widths: Ints
    texts: Ints
    kept: Ints


@compiled
def refill(running: Ints, fresh: Ints, count: int, starts: Ints, entered: int) -> int:
    """Let texts enter until all slots are busy or none waits; return how many have entered so far."""
    while count < len(running) and entered < len(starts):
        running[count], fresh[count] = starts[entered], 1
        count += 1
        entered += 1
    return entered


@compiled
def leave(running: Ints, fresh: Ints, left: Ints, finished: Ints) -> int:
    """Let those at the end of their text leave; return how many still run.

    Args:
        running: (batch,), rows; written.
        fresh: (batch,); written.
        left: (rows,), tokens still to come.
        finished: (batch,), room to work in.
    """
    count, gone = len(running), 0
    for slot in range(count):
        if left[running[slot]] == 0:
            finished[gone] = running[slot]
            gone += 1
    for place in range(gone):
        slot = 0
        while running[slot] != finished[place]:
            slot += 1
        count -= 1
        running[slot], fresh[slot] = running[count], fresh[count]
    return count
