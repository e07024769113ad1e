"""Suffix trees drafted at a text's end and at every position of recorded texts."""

from __future__ import annotations

from typing import NamedTuple

from ..kernels.arrays import Floats, Ints
from ..kernels.compiled import compiled
from ..kernels.ranking import (
    MOST,
    ROOT,
    TAKEN,
    Ranking,
    begin,
    mark_right,
    put,
    ranking_in,
    take,
    write_root,
    write_tree,
)
from ..kernels.several import ENTRIES, packed
from .automaton import LONGEST_MATCH, MATCHED, NONE, Automaton, automaton_in, clear, followed, most_behind, read
from .text import Judged, RecordedTexts


class TreeBound(NamedTuple):
    """Most nodes of a suffix tree behind a match of m tokens: min(nodes, factor m + offset), without the root."""

    nodes: int
    factor: int
    offset: int
    least: float  # chance of a node


class TreeGrid(NamedTuple):
    """The numbers of several suffix trees: (settings,) each."""

    nodes: Ints
    factors: Ints
    offsets: Ints
    matches: Ints
    leasts: Floats
    scores: Floats  # the least of a tree


@compiled
def tree_sweep(
    texts: RecordedTexts, memory: Ints, grid: TreeGrid, ranking: Ranking, is_right: Ints, judged: Judged
) -> None:
    """Write into `judged` (settings, rows), at every position, each suffix tree's right tokens and size.

    A tree's nodes have one order whatever its limits are, so one growth behind a match serves all of them. `memory` has
    room for the longest text, `ranking` and `is_right` for the most nodes of any tree.
    """
    accepted, sizes = judged
    widest = TreeBound(grid.nodes.max(), grid.factors.max(), grid.offsets.max(), grid.leasts.min())
    a, row = automaton_in(memory), 0
    for text in range(len(texts.prompts)):
        own = texts.tokens[texts.firsts[text] : texts.firsts[text + 1]]
        clear(a)
        read(a, own[: texts.prompts[text] - 1])
        for now in range(texts.prompts[text], len(own)):
            read(a, own[now - 1 : now])
            _judge(own, now, a, grid, widest, ranking, is_right, Judged(accepted[:, row], sizes[:, row]))
            row += 1
        accepted[:, row], sizes[:, row] = 0, 1
        row += 1


@compiled
def read_and_grow(
    memory: Ints, fresh: Ints, limits: Ints, leasts: Floats, chances: Floats, lines: Ints, tree: Ints
) -> int:
    """Append tokens to the text, which has room, and write the tree behind its end; return its nodes.

    `limits` (4,) is most nodes, factor and offset of its `TreeBound`, and the shortest match; `leasts` (2,) chance of a
    node and score of a tree. `chances` and `lines` are a ranking's memory. `tree` (3, nodes + 1) gets tokens, parents
    and depths, root first.
    """
    a, ranking = automaton_in(memory), ranking_in(chances, lines)
    bound, shortest = TreeBound(limits[0], limits[1], limits[2], leasts[0]), limits[3]
    read(a, fresh)
    best, nodes = 0.0, 0
    state = _longest_looked_at(a)
    write_root(tree)
    while state > 0 and _match_of(a, state) >= shortest and best < _most_of(a, state, bound):
        # no chance is above 1, and shorter ends have smaller trees
        count = grow_behind(a, state, bound, ranking)
        score = 0.0
        for place in range(count):
            score += ranking.chances[ranking.ids[place]]
        if score > best:
            best, nodes = score, count
            write_tree(ranking, count, lines[7], tree)
        state = a.links[state]
    return nodes + 1 if best >= leasts[1] else 1


@compiled
def _most_of(a: Automaton, state: int, bound: TreeBound) -> int:
    return most_behind(_match_of(a, state), bound.nodes, bound.factor, bound.offset)


@compiled
def _match_of(a: Automaton, state: int) -> int:
    """Return the tokens of a state's longest string, at most those that count."""
    return int(min(a.longest[state], LONGEST_MATCH))


@compiled
def grow_behind(a: Automaton, state: int, bound: TreeBound, ranking: Ranking) -> int:
    """Rank the likeliest nodes behind a state's longest string, which ends the text; return how many are taken."""
    begin(ranking, _most_of(a, state, bound))
    node, chance, depth = ROOT, 1.0, 0
    while ranking.head[TAKEN] < ranking.head[MOST]:
        times, edge = followed(a, state), a.edges[state]
        while edge != NONE:
            target = a.targets[edge]
            own = chance * a.counts[target] / times
            if own >= bound.least:
                put(ranking, own, a.labels[edge], node, depth + 1, a.newest[target], target)
            edge = a.others[edge]
        node = take(ranking)
        if node == NONE:
            break
        state, chance, depth = ranking.marks[node], ranking.chances[node], ranking.depths[node]
    return int(ranking.head[TAKEN])


@compiled
def _longest_looked_at(a: Automaton) -> int:
    """Return the state of the longest end that occurred before, of those that are not too long."""
    state = a.head[MATCHED]
    while state > 0 and a.longest[a.links[state]] >= LONGEST_MATCH:
        state = a.links[state]
    return int(state)


@compiled
def _are_unbeatable(best: Floats, grid: TreeGrid, match: int) -> bool:
    """Return whether no setting's tree behind a match of `match` tokens or fewer can beat what it has."""
    for setting in range(len(best)):
        if best[setting] < most_behind(match, grid.nodes[setting], grid.factors[setting], grid.offsets[setting]):
            return False
    return True


@compiled
def _judge(
    own: Ints,
    now: int,
    a: Automaton,
    grid: TreeGrid,
    widest: TreeBound,
    ranking: Ranking,
    is_right: Ints,
    judged: Judged,
) -> None:
    """Write what each tree of the grid has right behind own[:now], and its size."""
    accepted, sizes = judged
    settings = len(grid.nodes)
    accepted[:], sizes[:] = 0, 1
    best = grid.leasts * 0.0
    state, shortest = _longest_looked_at(a), grid.matches.min()
    while state > 0 and _match_of(a, state) >= shortest:
        match = _match_of(a, state)
        if _are_unbeatable(best, grid, match):
            break  # as in `read_and_grow`
        count = grow_behind(a, state, widest, ranking)
        mark_right(ranking, count, own, now, is_right)
        for setting in range(settings):
            bound = most_behind(match, grid.nodes[setting], grid.factors[setting], grid.offsets[setting])
            most = min(count, bound)
            score, right, size = 0.0, 0, 0
            while size < most and ranking.chances[ranking.ids[size]] >= grid.leasts[setting]:
                score += ranking.chances[ranking.ids[size]]
                right += is_right[ranking.ids[size]]
                size += 1
            if score > best[setting] and match >= grid.matches[setting]:
                best[setting], accepted[setting], sizes[setting] = score, right, size + 1
        state = a.links[state]
    for setting in range(settings):
        if best[setting] < grid.scores[setting]:
            accepted[setting], sizes[setting] = 0, 1


@compiled
def grow_behind_all(
    memories: Ints, told: Ints, limits: Ints, leasts: Floats, chances: Floats, lines: Ints, room: Ints, drafted: Ints
) -> int:
    """Do `read_and_grow` for texts; return the largest tree's nodes. Other arrays are as in `copy_from_all`."""
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, _, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = read_and_grow(memories[row], told[start:end], limits, leasts, chances, lines, room[place])
        start = end
    return packed(room, told[0], drafted)
