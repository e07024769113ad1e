"""The running sequences of a lock-step replay: who enters, who leaves, in which slot.

Before a round the next texts enter at the end of the running list; after it, finished ones leave in slot order, each
giving its slot to the last of the list. When all have entered they enter once more, from the first on, so that every
slot stays busy until each has been decoded once; what enters again does not count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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


class Slots(NamedTuple):
    """What runs in each slot: (batch,) each, written."""

    running: Ints  # row
    fresh: Ints  # tokens committed since it last drafted, 1 after it entered
    entries: Ints  # how many texts had entered before it
    finished: Ints  # room to work in


NOBODY = -1  # stands for the text of a slot whose rounds do not count: it was decoded before


@compiled
def slots_of(batch: int) -> Slots:
    """Return room for so many sequences."""
    running, fresh, entries, finished = np.empty((4, batch), np.int64)
    return Slots(running, fresh, entries, finished)


@compiled
def refill(slots: Slots, count: int, starts: Ints, entered: int) -> int:
    """Let texts enter until all slots are busy; return how many have entered so far."""
    while count < len(slots.running):
        slots.running[count], slots.fresh[count], slots.entries[count] = starts[entered % len(starts)], 1, entered
        count += 1
        entered += 1
    return entered


@compiled
def counted_text(slots: Slots, slot: int, numbering: Numbering) -> int:
    """Return the text in a slot, NOBODY where it was decoded before."""
    if slots.entries[slot] >= len(numbering.starts):
        return NOBODY
    return int(numbering.text_of[slots.running[slot]])


@compiled
def leave(slots: Slots, numbering: Numbering) -> tuple[int, int]:
    """Let those at the end of their text leave; return how many still run, and how many texts are decoded by that."""
    count, gone, decoded = len(slots.running), 0, 0
    for slot in range(count):
        if numbering.left[slots.running[slot]] == 0:
            slots.finished[gone] = slots.entries[slot]
            gone += 1
            decoded += slots.entries[slot] < len(numbering.starts)
    for place in range(gone):
        slot = 0
        while slots.entries[slot] != slots.finished[place]:
            slot += 1
        count -= 1
        slots.running[slot], slots.fresh[slot] = slots.running[count], slots.fresh[count]
        slots.entries[slot] = slots.entries[count]
    return count, decoded
