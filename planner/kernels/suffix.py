"""Drafts out of a text's suffix automaton, at its end and at every position of recorded texts."""

from __future__ import annotations

from typing import NamedTuple

from .arrays import Floats, Ints, Small
from .automaton import FIRST, MATCHED, NONE, READ, Automaton, automaton_in, clear, followed, read
from .compiled import compiled
from .ranking import (
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

LONGEST_MATCH = 64  # ends of the text that propose a tree; longer ones count as this long. The published code's depth


class Texts(NamedTuple):
    """Recorded texts, one after the other.

    Attributes:
        tokens: of all.
        firsts: (texts + 1,), where each begins.
        prompts: (texts,), tokens of the prompt and the one after it, so where the first position's text ends.
    """

    tokens: Ints
    firsts: Ints
    prompts: Ints


class Bound(NamedTuple):
    """How many nodes a suffix tree may have behind a match of m tokens: min(nodes, factor m + offset), root apart."""

    nodes: int
    factor: int
    offset: int
    least: float  # chance of a node


class Grid(NamedTuple):
    """The numbers of several suffix trees: (settings,) each."""

    nodes: Ints
    factors: Ints
    offsets: Ints
    matches: Ints
    leasts: Floats
    scores: Floats  # the least of a tree


@compiled
def suffix_sweep(texts: Texts, memory: Ints, most: int, matches: Ints, right: Ints) -> None:
    """Find, at every position, the longest end that occurred before, and how far the text goes on alike.

    Args:
        texts: recorded.
        memory: room for the longest of them.
        most: tokens to compare.
        matches: (rows,), written: tokens of the longest end that occurred before, 0 where none did.
        right: (2, rows), written: how many of the tokens behind its first and behind its newest earlier occurrence the
            target takes, at most `most`.
    """
    a, row = automaton_in(memory), 0
    for text in range(len(texts.prompts)):
        own = texts.tokens[texts.firsts[text] : texts.firsts[text + 1]]
        clear(a)
        read(a, own[: texts.prompts[text] - 1])
        for now in range(texts.prompts[text], len(own)):
            read(a, own[now - 1 : now])
            matches[row] = a.longest[a.head[MATCHED]]
            for which in range(2):
                place = a.head[FIRST + which]
                right[which, row] = 0 if place == NONE else _right(own, place + 1, now, most)
            row += 1
        matches[row], right[:, row] = 0, 0  # the text's end
        row += 1


@compiled
def _right(own: Ints, start: int, now: int, most: int) -> int:
    """Return how many tokens from a place on stand behind own[:now], too; a copy that reaches `now` goes on."""
    right = 0
    while right < most and now + right < len(own) and own[start + right % (now - start)] == own[now + right]:
        right += 1
    return right


@compiled
def tree_sweep(
    texts: Texts, memory: Ints, grid: Grid, ranking: Ranking, is_right: Ints, accepted: Small, sizes: Small
) -> None:
    """Find, at every position, what each suffix tree of a grid has right and how large it is.

    A tree's nodes stand in one order whatever its limits are, so one growth behind a match tells about all of them.

    Args:
        texts: recorded.
        memory: room for the longest of them.
        grid: the limits.
        ranking: room for the most nodes of any tree.
        is_right: room for as many.
        accepted: (settings, rows), written.
        sizes: (settings, rows), written: root included.
    """
    widest = Bound(grid.nodes.max(), grid.factors.max(), grid.offsets.max(), grid.leasts.min())
    a, row = automaton_in(memory), 0
    for text in range(len(texts.prompts)):
        own = texts.tokens[texts.firsts[text] : texts.firsts[text + 1]]
        clear(a)
        read(a, own[: texts.prompts[text] - 1])
        for now in range(texts.prompts[text], len(own)):
            read(a, own[now - 1 : now])
            _judge(own, now, a, grid, widest, ranking, is_right, accepted[:, row], sizes[:, row])
            row += 1
        accepted[:, row], sizes[:, row] = 0, 1
        row += 1


@compiled
def read_and_grow(
    memory: Ints, fresh: Ints, limits: Ints, leasts: Floats, chances: Floats, lines: Ints, tree: Ints
) -> int:
    """Append tokens to the text, for which there is room, and write the tree behind its end; return its nodes.

    Args:
        memory: of the text.
        fresh: what is new of it.
        limits: (4,), most nodes, factor and offset of its `Bound`, and the shortest match.
        leasts: (2,), chance of a node, and score of a tree.
        chances, lines: memory of a ranking of so many nodes.
        tree: (3, nodes + 1), tokens, parents and depths, the root first; written.
    """
    a, ranking = automaton_in(memory), ranking_in(chances, lines)
    bound, shortest = Bound(limits[0], limits[1], limits[2], leasts[0]), limits[3]
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
def read_and_copy(memory: Ints, fresh: Ints, copying: Ints, tree: Ints) -> int:
    """Append tokens to the text, for which there is room, and write the chain that is copied behind its end.

    Args:
        memory: of the text.
        fresh: what is new of it.
        copying: most tokens, the factor and the offset of the bound by the match, the shortest match, and FIRST or
            NEWEST.
        tree: (3, most tokens + 1), tokens, parents and depths, the root first; written.

    Returns:
        The chain's nodes, root included; a copy that reaches the text's end goes on with itself.
    """
    a = automaton_in(memory)
    read(a, fresh)
    write_root(tree)
    most, factor, offset, least, occurrence = copying
    match, start = a.longest[a.head[MATCHED]], a.head[occurrence] + 1
    if match < least:
        return 1
    most = _most_behind(match, most, factor, offset)
    for place in range(most):
        tree[0, place + 1] = a.text[start + place % (a.head[READ] - start)]
        tree[1, place + 1], tree[2, place + 1] = place, place + 1
    return int(most) + 1


@compiled
def _most_behind(match: int, nodes: int, factor: int, offset: int) -> int:
    """Return the most nodes that a tree behind a match of so many tokens may have; see `Bound`."""
    return int(min(nodes, factor * match + offset))


@compiled
def _most_of(a: Automaton, state: int, bound: Bound) -> int:
    """Return the most nodes that a tree behind a state's longest string may have."""
    return _most_behind(_match_of(a, state), bound.nodes, bound.factor, bound.offset)


@compiled
def _match_of(a: Automaton, state: int) -> int:
    """Return the tokens of a state's longest string, as many as are looked at."""
    return int(min(a.longest[state], LONGEST_MATCH))


@compiled
def grow_behind(a: Automaton, state: int, bound: Bound, ranking: Ranking) -> int:
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
def _are_unbeatable(best: Floats, grid: Grid, match: int) -> bool:
    """Return whether no setting's tree behind a match of so many tokens, or fewer, can be better than what it has."""
    for setting in range(len(best)):
        if best[setting] < _most_behind(match, grid.nodes[setting], grid.factors[setting], grid.offsets[setting]):
            return False
    return True


@compiled
def _judge(
    own: Ints,
    now: int,
    a: Automaton,
    grid: Grid,
    widest: Bound,
    ranking: Ranking,
    is_right: Ints,
    accepted: Small,
    sizes: Small,
) -> None:
    """Write what each tree of the grid has right behind own[:now], and its size."""
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
            bound = _most_behind(match, grid.nodes[setting], grid.factors[setting], grid.offsets[setting])
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
