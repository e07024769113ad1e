"""The running sequences of a lock-step replay: who enters, who leaves, in which slot.

After a round, finished texts leave in slot order, each giving its place to the last of the list. Before the next round
others enter where one left, so that those that stay do not move (`records/slots.py`). Then all enter once more, so that
every slot is busy until each text has been decoded once; what enters again does not count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Ints
from .compiled import compiled


class Numbering(NamedTuple):
    """The arrays of `recorded.Rows`; see there."""

    starts: Ints
    left: Ints
    contexts: Ints
    text_of: Ints


class Rounds(NamedTuple):
    """The arrays of a `lockstep.Replay`, or room for them."""

    contexts: Ints
    nodes: Ints
    catch_up: Ints
    widths: Ints
    texts: Ints
    kept: Ints


class SlotArrays(NamedTuple):
    """What runs in each slot: (batch,) each, written."""

    running: Ints  # row
    fresh: Ints  # tokens committed since it last drafted, 1 after it entered
    entries: Ints  # how many texts had entered before it
    homes: Ints  # the slot in which it lies
    finished: Ints  # room to work in


NOBODY = -1  # stands for the text of a slot whose rounds do not count: it was decoded before


@compiled
def slots_of(batch: int) -> SlotArrays:
    """Return room for so many sequences."""
    running, fresh, entries, homes, finished = np.empty((5, batch), np.int64)
    return SlotArrays(running, fresh, entries, homes, finished)


@compiled
def move(slots: SlotArrays, source: int, target: int) -> None:
    """Move what runs in one place of the list to another; its slot does not change."""
    slots.running[target], slots.fresh[target] = slots.running[source], slots.fresh[source]
    slots.entries[target], slots.homes[target] = slots.entries[source], slots.homes[source]


@compiled
def refill(slots: SlotArrays, count: int, starts: Ints, entered: int) -> int:
    """Let texts enter until all slots are busy; return how many have entered so far."""
    while count < len(slots.running):
        free = count
        for slot in range(count):
            if slots.homes[slot] == count:
                free = slot
        if free < count:
            move(slots, free, count)
        slots.running[free], slots.fresh[free] = starts[entered % len(starts)], 1
        slots.entries[free], slots.homes[free] = entered, free
        count += 1
        entered += 1
    return entered


@compiled
def counted_text(slots: SlotArrays, slot: int, numbering: Numbering) -> int:
    """Return the text in a slot, NOBODY where it was decoded before."""
    if slots.entries[slot] >= len(numbering.starts):
        return NOBODY
    return int(numbering.text_of[slots.running[slot]])


@compiled
def leave(slots: SlotArrays, numbering: Numbering) -> tuple[int, int]:
    """Let texts at their end leave; return how many still run, and how many were decoded by that."""
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
        move(slots, count, slot)
    return count, decoded
