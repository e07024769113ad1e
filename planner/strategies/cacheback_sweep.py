"""Trees from Cacheback's table, at the text's end and at every position of recorded texts: arXiv:2511.21699."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Bools, Floats, Ints
from ..kernels.compiled import ZERO, compiled
from ..kernels.ranking import ROOT, TAKEN, Ranking, begin, mark_right, put, take, write_tree
from .cacheback_table import NONE, READ, FollowerTable, clear, read, slot_of
from .text import Judged, RecordedTexts


class BothTables(NamedTuple):
    """A text's table, and a corpus's, which never changes and is searched second.

    Their leaders and followers have equally many tokens. The second's ranks follow all that the first has room for.
    """

    own: FollowerTable
    frozen: FollowerTable


class Trie(NamedTuple):
    """The followers of one leader in both tables, merged: (FC * FL,) each, where FC counts both tables' followers.

    A node that does not fit into the ranking stays here, so that its descendants are known not to fit; its id is NONE
    or went to a node that precedes them all.
    """

    above: Ints  # which of these nodes, ROOT right below the leader
    tokens: Ints
    nodes: Ints  # id in the ranking
    chances: Floats


class TreeLimits(NamedTuple):
    """Limits of a tree: nodes without the root, drafted tokens on a path, and the chance of a node."""

    nodes: int
    depth: int
    least: float


class TableGrid(NamedTuple):
    """The numbers of several trees out of one table: (settings,) each."""

    nodes: Ints
    leasts: Floats


class Pads(NamedTuple):
    """Room to grow one tree in."""

    ranking: Ranking  # a node's mark is how many followers led there, NONE inside one
    trie: Trie  # of a leader's followers


def trie_of(tables: BothTables) -> Trie:
    """Return room for all followers of a leader."""
    most = sum(table.followers[0].size for table in tables)
    above, tokens, nodes = np.zeros((3, most), dtype=np.int64)
    return Trie(above, tokens, nodes, np.zeros(most))


@compiled
def grow_tree(both: BothTables, chances: Floats, limits: TreeLimits, work: Pads) -> int:
    """Rank the likeliest nodes behind the text's end in `work`; return how many are taken.

    `chances` (hops, FC, FL) is that a follower's node is on the path, given its leader; FC counts both tables'
    followers. `work` has room for limits.nodes and FC * FL nodes.
    """
    ranking = work.ranking
    begin(ranking, limits.nodes)
    t = both.own
    length = t.leaders.shape[1]
    if t.head[READ] < length:
        return 0
    node, hop = ROOT, 0  # followers are looked up behind the root and where followers end
    leader = t.window[len(t.window) - length :].copy()
    while ranking.head[TAKEN] < limits.nodes:
        if hop != NONE:
            _write_leader(t, ranking, node, leader)
            _put_followers(both, leader, chances[min(hop, len(chances) - 1)], node, hop, limits, work)
        node = take(ranking)
        if node == NONE:
            break
        hop = ranking.marks[node]
    return int(ranking.head[TAKEN])


@compiled
def draft_tree(both: BothTables, chances: Floats, limits: TreeLimits, work: Pads, places: Ints, tree: Ints) -> int:
    """Write the tree behind the text's end as `ranking.write_tree` does; return its nodes, root apart."""
    count = grow_tree(both, chances, limits, work)
    write_tree(work.ranking, count, places, tree)
    return count


@compiled
def table_sweep(
    texts: RecordedTexts,
    both: BothTables,
    chances: Floats,
    limits: TreeLimits,
    grid: TableGrid,
    work: Pads,
    is_right: Ints,
    judged: Judged,
) -> None:
    """Write into `judged` (settings, rows), at every position, each tree's right tokens and size, from one growth.

    The text's table in `both` is filled here; `limits` are the widest of the grid; `is_right` has limits.nodes places.
    """
    ranking, (accepted, sizes) = work.ranking, judged
    row, t = 0, both.own
    for text in range(len(texts.prompts)):
        own = texts.tokens[texts.firsts[text] : texts.firsts[text + 1]]
        clear(t)
        read(t, own[: texts.prompts[text] - 1])
        for now in range(texts.prompts[text], len(own)):
            read(t, own[now - 1 : now])
            count = grow_tree(both, chances, limits, work)
            mark_right(ranking, count, own, now, is_right)
            for setting in range(len(grid.nodes)):
                right, size = 0, 0
                while (
                    size < min(count, grid.nodes[setting])
                    and ranking.chances[ranking.ids[size]] >= grid.leasts[setting]
                ):
                    right += is_right[ranking.ids[size]]
                    size += 1
                accepted[setting, row], sizes[setting, row] = right, size + 1
            row += 1
        accepted[:, row], sizes[:, row] = 0, 1
        row += 1


@compiled
def count_chances(
    texts: RecordedTexts, chosen: Bools, both: BothTables, trie: Trie, seen: Floats, right: Floats
) -> None:
    """Count, at every position of the chosen texts, how often nodes that followers add are on the target's path.

    The target's path goes from follower to follower, as long as it follows one to its end. `chosen` is (texts,); `trie`
    has room for FC * FL nodes; `seen` and `right`, (hops, FC, FL), start as zeros and are written.
    """
    t = both.own
    length, span = t.leaders.shape[1], t.followers.shape[2]
    for text in range(len(texts.prompts)):
        own = texts.tokens[texts.firsts[text] : texts.firsts[text + 1]]
        if not chosen[text]:
            continue
        clear(t)
        read(t, own[: texts.prompts[text] - 1])
        for now in range(texts.prompts[text], len(own)):
            read(t, own[now - 1 : now])
            at, hop = now, 0
            while at >= length and at < len(own) and hop < len(seen):
                is_whole = _count_at(both, own[at - length : at], own[at : at + span], trie, seen[hop], right[hop])
                if not is_whole:
                    break
                at += span
                hop += 1


@compiled
def _count_at(both: BothTables, leader: Ints, after: Ints, trie: Trie, seen: Floats, right: Floats) -> bool:
    """Count one leader's nodes; return whether the text goes on with a whole follower."""
    own = both.own.followers.shape[1]
    count, is_whole = _count_in(both.own, leader, after, ZERO, trie, seen[:own], right[:own])
    _, is_whole_there = _count_in(both.frozen, leader, after, count, trie, seen[own:], right[own:])
    return is_whole or is_whole_there


@compiled
def _count_in(
    t: FollowerTable, leader: Ints, after: Ints, count: int, trie: Trie, seen: Floats, right: Floats
) -> tuple[int, bool]:
    """Count what one table adds to `count` nodes; return their new number, and whether it has a whole follower."""
    slot, is_whole = slot_of(t, leader), False
    span = t.followers.shape[2]
    for rank in range(0 if slot == NONE else t.counts[slot]):
        above, agrees = ROOT, True
        for place in range(span):
            token = t.followers[slot, rank, place]
            agrees = agrees and place < len(after) and after[place] == token
            known = _known(trie, count, above, token)
            if known == NONE:
                trie.above[count], trie.tokens[count] = above, token
                known = count
                count += 1
                seen[rank, place] += 1.0
                right[rank, place] += 1.0 if agrees else 0.0
            above = known
        is_whole = is_whole or agrees
    return count, is_whole


@compiled
def _put_followers(
    both: BothTables, leader: Ints, chances: Floats, parent: int, hop: int, limits: TreeLimits, work: Pads
) -> None:
    """Queue what a leader's followers add to the tree behind a node, the text's own before the frozen ones."""
    own = both.own.followers.shape[1]
    count = _put_of(both.own, leader, chances[:own], ZERO, parent, hop, limits, work)
    _put_of(both.frozen, leader, chances[own:], count, parent, hop, limits, work)


@compiled
def _put_of(
    t: FollowerTable,
    leader: Ints,
    chances: Floats,
    count: int,
    parent: int,
    hop: int,
    limits: TreeLimits,
    work: Pads,
) -> int:
    """Queue what one table adds to a trie of `count` nodes; return their new number."""
    ranking, trie = work
    slot = slot_of(t, leader)
    depth = 0 if parent == ROOT else ranking.depths[parent]
    chance = 1.0 if parent == ROOT else ranking.chances[parent]
    span = t.followers.shape[2]
    for rank in range(0 if slot == NONE else t.counts[slot]):
        above, most = ROOT, chance
        for place in range(min(span, limits.depth - depth)):
            token = t.followers[slot, rank, place]
            known = _known(trie, count, above, token)
            if known == NONE:
                known = count
                count += 1
                most = min(most, chance * chances[rank, place])
                trie.above[known], trie.tokens[known], trie.chances[known] = above, token, most
                trie.nodes[known] = NONE
                if most >= limits.least and most > 0.0:
                    over = parent if above == ROOT else trie.nodes[above]
                    mark = hop + 1 if place == span - 1 else NONE
                    trie.nodes[known] = put(ranking, most, token, over, depth + 1 + place, -known, mark)
            above, most = known, trie.chances[known]
    return count


@compiled
def _known(trie: Trie, count: int, above: int, token: int) -> int:
    """Return the trie's node of a token below `above`, NONE if there is none."""
    for known in range(count):
        if trie.above[known] == above and trie.tokens[known] == token:
            return known
    return NONE


@compiled
def _write_leader(t: FollowerTable, ranking: Ranking, node: int, leader: Ints) -> None:
    """Write the last tokens of the text followed by a node's path."""
    place = len(leader) - 1
    while place >= 0 and node != ROOT:
        leader[place] = ranking.tokens[node]
        node = ranking.parents[node]
        place -= 1
    at = len(t.window) - 1
    while place >= 0:
        leader[place] = t.window[at]
        place -= 1
        at -= 1
