"""A heap of keys: no key is larger than those at 2 i + 1 and 2 i + 2."""

from __future__ import annotations

from .arrays import Ints
from .compiled import compiled


@compiled
def sift_down(heap: Ints, size: int) -> None:
    """Move the first key down to its place."""
    key, at, under = heap[0], 0, 1
    while under < size:
        if under + 1 < size and heap[under + 1] < heap[under]:
            under += 1
        if heap[under] > key:
            break
        heap[at] = heap[under]
        at, under = under, 2 * under + 1
    heap[at] = key


@compiled
def sift_up(heap: Ints, at: int, key: int) -> None:
    """Move a new last key up to its place."""
    while at > 0 and heap[(at - 1) // 2] > key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = key
