"""Drafts out of several texts by one call, which few arrays are handed to: each costs as much as copying a token.

What is told of the texts is one array: how many there are; of each its row in memory, its tokens before, and where its
new ones end in this array; then what is new, one text's tokens behind the other's.
"""

from __future__ import annotations

from .arrays import Floats, Ints
from .compiled import compiled
from .lookup import append_and_copy
from .suffix import read_and_copy, read_and_grow

ENTRIES = 3  # of each text in what is told


@compiled
def look_up_in_all(texts: Ints, told: Ints, search: Ints, room: Ints, drafted: Ints) -> int:
    """Append tokens to texts, and write what prompt lookup finds behind the end of each.

    Args:
        texts: (any, tokens), what `append_and_copy` takes of one, a row each.
        told: of the texts, see above.
        search: as `append_and_copy` takes it.
        room: (at least the texts, 3, most nodes), to work in.
        drafted: written: the nodes of every tree, then tokens, parents and depths of all, padded to the largest, as a
            DraftBatch has them.

    Returns:
        The largest tree's nodes.
    """
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, count, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = append_and_copy(texts[row], count, told[start:end], search, room[place])
        start = end
    return _packed(room, told[0], drafted)


@compiled
def copy_from_all(memories: Ints, told: Ints, copying: Ints, room: Ints, drafted: Ints) -> int:
    """Append tokens to texts, and write the chain that is copied behind the end of each: `read_and_copy`.

    Args:
        memories: (any, words), automata, a row each.
        told, room, drafted: as in `look_up_in_all`.
        copying: as `read_and_copy` takes it.

    Returns:
        The largest chain's nodes.
    """
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, _, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = read_and_copy(memories[row], told[start:end], copying, room[place])
        start = end
    return _packed(room, told[0], drafted)


@compiled
def grow_behind_all(
    memories: Ints, told: Ints, limits: Ints, leasts: Floats, chances: Floats, lines: Ints, room: Ints, drafted: Ints
) -> int:
    """Append tokens to texts, and write the tree behind the end of each: `read_and_grow`.

    Args:
        memories, told, room, drafted: as in `copy_from_all`.
        limits, leasts, chances, lines: as `read_and_grow` takes them.

    Returns:
        The largest tree's nodes.
    """
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, _, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = read_and_grow(memories[row], told[start:end], limits, leasts, chances, lines, room[place])
        start = end
    return _packed(room, told[0], drafted)


@compiled
def _packed(room: Ints, batch: int, drafted: Ints) -> int:
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
