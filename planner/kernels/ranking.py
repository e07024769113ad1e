"""The likeliest nodes of a growing tree, best first: those taken, then those that wait.

Every node has an id below the ranking's length. `ids` holds them by falling chance; of equal ones the shallower comes
first, then the one with the larger `tie`. The first `taken` are the tree. What does not fit is dropped, and its id
reused. A node is never likelier than its parent, so parents come first.
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

    `head` holds the numbers of nodes taken, of nodes held, those that wait included, and of nodes allowed.
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
    """Return a ranking's memory: `chances`, and all else as lines of (8, most or more).

    The lines are `head`, `ids`, `tokens`, `parents`, `depths`, `ties` and `marks`, then room for written nodes. Two
    arrays pass to a kernel faster than a named tuple.
    """
    return np.zeros(most), np.zeros((8, max(most, 3)), dtype=np.int64)


@compiled
def ranking_in(chances: Floats, lines: Ints) -> Ranking:
    """Return the ranking in this memory."""
    return Ranking(lines[0], lines[1], chances, lines[2], lines[3], lines[4], lines[5], lines[6])


@compiled
def begin(ranking: Ranking, most: int) -> None:
    """Remove all nodes, and allow at most `most` from now on."""
    ranking.head[TAKEN] = ranking.head[HELD] = 0
    ranking.head[MOST] = most


@compiled
def take(ranking: Ranking) -> int:
    """Take the best waiting node; return its id, NONE where none waits."""
    if ranking.head[TAKEN] == ranking.head[HELD]:
        return NONE
    ranking.head[TAKEN] += 1
    return int(ranking.ids[ranking.head[TAKEN] - 1])


@compiled
def put(ranking: Ranking, chance: float, token: int, parent: int, depth: int, tie: int, mark: int) -> int:
    """Add a waiting node; return its id, NONE where it does not fit."""
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
    """Write by id, for the first `count` nodes, 1 where the node is on the text's own path, else 0.

    The tree is behind own[:now]; `own` goes on. `is_right` is (most,).
    """
    for place in range(count):
        node = ranking.ids[place]
        at = now + ranking.depths[node] - 1
        is_reached = ranking.parents[node] == ROOT or is_right[ranking.parents[node]] == 1
        is_right[node] = 1 if is_reached and at < len(own) and own[at] == ranking.tokens[node] else 0


@compiled
def write_tree(ranking: Ranking, count: int, places: Ints, tree: Ints) -> None:
    """Write the first `count` nodes, all taken, as tokens, parents and depths behind the root at node 0.

    `places` (most,) is scratch. `tree` is (3, most + 1) or wider; the root's column is not written.
    """
    for place in range(count):
        node = ranking.ids[place]
        places[node] = place + 1
        tree[0, place + 1] = ranking.tokens[node]
        tree[1, place + 1] = 0 if ranking.parents[node] == ROOT else places[ranking.parents[node]]
        tree[2, place + 1] = ranking.depths[node]


@compiled
def write_root(tree: Ints) -> None:
    """Write the root's column, except its token: no parent, depth 0."""
    tree[0, 0], tree[1, 0], tree[2, 0] = -1, -1, 0


@compiled
def _is_before(ranking: Ranking, chance: float, depth: int, tie: int, other: int) -> bool:
    if chance != ranking.chances[other]:
        return bool(chance > ranking.chances[other])
    if depth != ranking.depths[other]:
        return bool(depth < ranking.depths[other])
    return bool(tie > ranking.ties[other])
