"""Which sequence of a running batch lies in which slot: who leaves makes room, and nothing moves for who comes then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Slots(Generic[Item]):
    """A running batch, of a decoder or of a replay, and where caches hold it.

    A round wants the i-th sequence in slot i. Where one leaves, the last of the batch would have to move into its
    place, with keys and values, of drafters too. It moves only when the next round begins: a sequence that joins before
    takes the free slot, and nothing moves.

    Invariant: sequence i lies in slot i, or in one that is no smaller than the batch.
    """

    def __init__(self) -> None:
        """Hold nobody yet."""
        self.running: list[Item] = []
        self._homes: list[int] = []  # of each sequence, the slot in which it lies

    @property
    def next(self) -> int:
        """The slot of the sequence that joins next, which is free."""
        last = len(self.running)
        return self._homes.index(last) if last in self._homes else last

    @property
    def homes(self) -> list[int]:
        """The slot of each sequence of the batch."""
        return list(self._homes)

    def join(self, sequence: Item) -> int:
        """Let a sequence into the batch; return its slot, which was the next."""
        slot, last = self.next, len(self.running)
        self.running.append(sequence)
        self._homes.append(last)
        if slot != last:
            self.running[slot], self.running[last] = sequence, self.running[slot]
            self._homes[slot] = slot
        return slot

    def leave(self, sequence: Item) -> int:
        """Let a sequence of the batch leave; the last one takes its place. Return the slot in which it lies."""
        place = next(place for place, other in enumerate(self.running) if other is sequence)
        slot = self._homes[place]
        last, home = self.running.pop(), self._homes.pop()
        if place < len(self.running):
            self.running[place], self._homes[place] = last, home
        return slot

    def settle(self) -> Iterator[tuple[int, int, Item]]:
        """Yield source, target and sequence of every move that is due.

        Each counts as done when the next is taken; one that was broken off is due again.
        """
        for place, home in enumerate(self._homes):
            if home != place:
                yield home, place, self.running[place]
                self._homes[place] = place
