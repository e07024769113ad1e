"""Prompt lookup at every position of a text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Ints
from ..kernels.compiled import compiled
from ..kernels.ranking import write_root
from ..kernels.several import ENTRIES, packed


class LookupSearch(NamedTuple):
    """A LookupPolicy's numbers."""

    max_ngram: int
    min_ngram: int
    length: int
    is_first: bool  # of several occurrences the first is copied behind, else the last


@compiled
def lookup_sweep(tokens: Ints, firsts: Ints, prompts: Ints, search: LookupSearch, found: Ints, right: Ints) -> None:
    """Write (rows,) tokens copied (`found`) and taken by the target (`right`) at every position; both start as zeros.

    earlier[n][i] = the last place before i where the n-gram that ends at i ended before, found along earlier[n - 1];
    for the first occurrence, from the text's start on, that place's own first place

    `firsts` (texts + 1,) is where each text begins. `prompts` (texts,) counts the prompt and one token more: there the
    first position's text ends.
    """
    row = 0
    earlier = np.empty((search.max_ngram + 1, len(tokens)), np.int64)
    for text in range(len(prompts)):
        own = tokens[firsts[text] : firsts[text + 1]]
        _link(own, search.max_ngram, earlier)
        if search.is_first:
            _to_first(earlier[:, : len(own)])
        for now in range(prompts[text], len(own)):
            taken = _taken(earlier, now - 1, search.max_ngram, search.min_ngram)
            if taken >= 0:
                found[row] = min(search.length, now - 1 - taken)
                while (
                    right[row] < found[row]
                    and now + right[row] < len(own)
                    and own[taken + 1 + right[row]] == own[now + right[row]]
                ):
                    right[row] += 1
            row += 1
        row += 1  # the text's end


@compiled
def append_and_copy(text: Ints, count: int, fresh: Ints, search: Ints, tree: Ints) -> int:
    """Append tokens to a text, and write what `lookup.find_continuation` finds as a chain; return its nodes and root.

    `text` holds `count` tokens and room for `fresh`. `search` is max_ngram, min_ngram, most tokens to copy, and 1 for
    the first occurrence. `tree` (3, most tokens + 1) gets tokens, parents and depths, root first.
    """
    end = count + len(fresh)
    text[count:end] = fresh
    write_root(tree)
    max_ngram, min_ngram, most, is_first = search
    taken = _searched(text[:end], max_ngram, min_ngram, is_first == 1)
    copied = 0 if taken < 0 else min(most, end - 1 - taken)
    for place in range(copied):
        tree[0, place + 1] = text[taken + 1 + place]
        tree[1, place + 1], tree[2, place + 1] = place, place + 1
    return int(copied) + 1


@compiled
def _searched(own: Ints, max_ngram: int, min_ngram: int, is_first: bool) -> int:
    """Return where the longest of the text's last n-grams ended before, -1 where none did."""
    last, longest, taken = len(own) - 1, min_ngram - 1, -1
    for step in range(last):
        end = step if is_first else last - 1 - step
        agreed = 0
        while agreed < max_ngram and agreed <= end and own[end - agreed] == own[last - agreed]:
            agreed += 1
        if agreed > longest:
            longest, taken = agreed, end
            if longest == max_ngram:
                break
    return taken


@compiled
def _link(own: Ints, max_ngram: int, earlier: Ints) -> None:
    """Write where each n-gram of a text ended before, -1 where it did not."""
    order = np.argsort(own, kind="mergesort")
    for place in range(len(order)):
        is_first = place == 0 or own[order[place]] != own[order[place - 1]]
        earlier[1, order[place]] = -1 if is_first else order[place - 1]
    for at in range(len(own)):
        for ngram in range(2, max_ngram + 1):
            before = earlier[ngram - 1, at]
            while before >= ngram - 1 and own[before - ngram + 1] != own[at - ngram + 1]:
                before = earlier[ngram - 1, before]
            earlier[ngram, at] = before if before >= ngram - 1 else -1


@compiled
def _to_first(earlier: Ints) -> None:
    for ngram in range(1, len(earlier)):
        for at in range(earlier.shape[1]):
            before = earlier[ngram, at]
            if before >= 0 and earlier[ngram, before] >= 0:
                earlier[ngram, at] = earlier[ngram, before]


@compiled
def _taken(earlier: Ints, at: int, max_ngram: int, min_ngram: int) -> int:
    """Return where the longest n-gram that ends here ended before, -1 if none did."""
    for ngram in range(max_ngram, min_ngram - 1, -1):
        before: int = earlier[ngram, at]
        if before >= 0:
            return before
    return -1


@compiled
def look_up_in_all(texts: Ints, told: Ints, search: Ints, room: Ints, drafted: Ints) -> int:
    """Append tokens to texts, and write what prompt lookup finds behind each; return the largest tree's nodes.

    `texts` (any, tokens) and `search` are as in `append_and_copy`, a text a row; `told` is that of
    `kernels/several.py`; `room` (at least the texts, 3, most nodes) is scratch. `drafted` gets the nodes of every tree,
    then tokens, parents and depths of all, padded to the largest, as a DraftBatch has them.
    """
    start = 1 + ENTRIES * told[0]
    for place in range(told[0]):
        row, count, end = told[1 + ENTRIES * place : 1 + ENTRIES * (place + 1)]
        drafted[place] = append_and_copy(texts[row], count, told[start:end], search, room[place])
        start = end
    return packed(room, told[0], drafted)
