"""The likeliest nodes of a tree that is being found, best first: those taken, then those that wait to be.

Every node has an id below the ranking's length. `ids` holds them by falling chance; of equal ones the shallower stands
before the deeper, then the one with the larger `tie`. The first `taken` are the tree, the others wait. What does not
fit is dropped, and its id given to another. A node is never likelier than its parent, so parents stand first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Floats, Ints
from .compiled import compiled

ROOT = -1  # the parent of nodes right below the root
NONE = -1
TAKEN, HELD, MOST = range(3)  # entries of `head`


class Ranking(NamedTuple):
    """(most,) each; all but `head` and `ids` by id.

    `head` holds how many nodes are taken, how many are held with those that wait, and how many may be.
    """

    head: Ints
    ids: Ints
    chances: Floats
    tokens: Ints
    parents: Ints  # ids, or ROOT
    depths: Ints
    ties: Ints
    marks: Ints  # whatever the caller wants to know of a node when it is taken


def ranking_of(most: int) -> Ranking:
    """Return room for so many nodes."""
    ids, tokens, parents, depths, ties, marks = np.zeros((6, most), dtype=np.int64)
    return Ranking(np.zeros(3, dtype=np.int64), ids, np.zeros(most), tokens, parents, depths, ties, marks)


def ranking_memory_of(most: int) -> tuple[Floats, Ints]:
    """Return what a ranking of so many nodes lies in: `chances`, and all else as lines of (8, most or more).

    The lines are `head`, `ids`, `tokens`, `parents`, `depths`, `ties` and `marks`, then where nodes are written. Few
    arrays are handed to a kernel faster than a tuple with names.
    """
    return np.zeros(most), np.zeros((8, max(most, 3)), dtype=np.int64)


@compiled
def ranking_in(chances: Floats, lines: Ints) -> Ranking:
    """Return the ranking that lies there."""
    return Ranking(lines[0], lines[1], chances, lines[2], lines[3], lines[4], lines[5], lines[6])


@compiled
def begin(ranking: Ranking, most: int) -> None:
    """Hold no node, and at most so many from now on."""
    ranking.head[TAKEN] = ranking.head[HELD] = 0
    ranking.head[MOST] = most


@compiled
def take(ranking: Ranking) -> int:
    """Take the best node that waits; return its id, NONE where none does."""
    if ranking.head[TAKEN] == ranking.head[HELD]:
        return NONE
    ranking.head[TAKEN] += 1
    return int(ranking.ids[ranking.head[TAKEN] - 1])


@compiled
def put(ranking: Ranking, chance: float, token: int, parent: int, depth: int, tie: int, mark: int) -> int:
    """Let a node wait; return its id, NONE where it does not fit."""
    taken, at = ranking.head[TAKEN], ranking.head[HELD]
    node = at
    if at == ranking.head[MOST]:
        at -= 1
        if at < taken or not _is_before(ranking, chance, depth, tie, ranking.ids[at]):
            return NONE
        node = ranking.ids[at]
    else:
        ranking.head[HELD] += 1
    while at > taken and _is_before(ranking, chance, depth, tie, ranking.ids[at - 1]):
        ranking.ids[at] = ranking.ids[at - 1]
        at -= 1
    ranking.ids[at] = node
    ranking.chances[node], ranking.tokens[node], ranking.parents[node] = chance, token, parent
    ranking.depths[node], ranking.ties[node], ranking.marks[node] = depth, tie, mark
    return int(node)


@compiled
def mark_right(ranking: Ranking, count: int, own: Ints, now: int, is_right: Ints) -> None:
    """Write, for the first `count` nodes in order, 1 where the node is on the text's own path, else 0.

    Args:
        ranking: a tree behind own[:now].
        count: nodes taken.
        own: (tokens,), the text as it goes on.
        now: tokens committed.
        is_right: (most,), by id; written.
    """
    for place in range(count):
        node = ranking.ids[place]
        at = now + ranking.depths[node] - 1
        is_reached = ranking.parents[node] == ROOT or is_right[ranking.parents[node]] == 1
        is_right[node] = 1 if is_reached and at < len(own) and own[at] == ranking.tokens[node] else 0


@compiled
def write_tree(ranking: Ranking, count: int, places: Ints, tree: Ints) -> None:
    """Write the first `count` nodes as a tree: tokens, parents and depths behind the root at node 0.

    Args:
        ranking: with so many nodes taken.
        count: nodes.
        places: (most,), room to work in.
        tree: (3, most + 1) or wider, the root's column is left as it is; written.
    """
    for place in range(count):
        node = ranking.ids[place]
        places[node] = place + 1
        tree[0, place + 1] = ranking.tokens[node]
        tree[1, place + 1] = 0 if ranking.parents[node] == ROOT else places[ranking.parents[node]]
        tree[2, place + 1] = ranking.depths[node]


@compiled
def write_root(tree: Ints) -> None:
    """Write the root's column: a token that is the caller's, no parent, depth 0."""
    tree[0, 0], tree[1, 0], tree[2, 0] = -1, -1, 0


@compiled
def _is_before(ranking: Ranking, chance: float, depth: int, tie: int, other: int) -> bool:
    if chance != ranking.chances[other]:
        return bool(chance > ranking.chances[other])
    if depth != ranking.depths[other]:
        return bool(depth < ranking.depths[other])
    return bool(tie > ranking.ties[other])
