"""Chains copied at a text's end and at every position of recorded texts."""

from __future__ import annotations

from ..kernels.arrays import Ints
from ..kernels.compiled import compiled
from ..kernels.ranking import write_root
from ..kernels.several import ENTRIES, packed
from .automaton import FIRST, MATCHED, NONE, READ, automaton_in, clear, most_behind, read
from .text import RecordedTexts


@compiled
def suffix_sweep(texts: RecordedTexts, memory: Ints, most: int, matches: Ints, right: Ints) -> None:
    """Find, at every position, the longest end that occurred before, and how far the text continues alike.

    `memory` has room for the longest text. `matches` (rows,) gets that end's tokens, 0 without one; `right` (2, rows)
    how many of at most `most` tokens behind its first and its newest earlier occurrence the target takes.
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
    """Return how many tokens from `start` on also follow own[:now]; a copy that reaches `now` goes on."""
    right = 0
    while right < most and now + right < len(own) and own[start + right % (now - start)] == own[now + right]:
        right += 1
    return right


@compiled
def read_and_copy(memory: Ints, fresh: Ints, copying: Ints, tree: Ints) -> int:
    """Append tokens to the text, which has room, and write the chain copied behind its end; return its nodes and root.

    `copying` is most tokens, factor and offset of the bound by the match, shortest match, and FIRST or NEWEST. `tree`
    (3, most tokens + 1) gets tokens, parents and depths, root first. At the text's end a copy goes on with itself.
    """
    a = automaton_in(memory)
    read(a, fresh)
    write_root(tree)
    most, factor, offset, least, occurrence = copying
    match, start = a.longest[a.head[MATCHED]], a.head[occurrence] + 1
    if match < least:
        return 1
    most = most_behind(match, most, factor, offset)
    for place in range(most):
        tree[0, place + 1] = a.text[start + place % (a.head[READ] - start)]
        tree[1, place + 1], tree[2, place + 1] = place, place + 1
    return int(most) + 1


@compiled
def copy_from_all(memories: Ints, told: Ints, copying: Ints, room: Ints, drafted: Ints) -> int:
    """Do `read_and_copy` for texts; return the largest chain's nodes.

    `memories` (any, words) holds an automaton a row; `told`, `room` and `drafted` are as in `look_up_in_all`.
    """
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, _, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = read_and_copy(memories[row], told[start:end], copying, room[place])
        start = end
    return packed(room, told[0], drafted)
