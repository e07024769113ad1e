"""Attention of new tokens over a bfloat16 cache: `host_rows.py` by products of bfloat16 numbers.

Lines are the query heads of all new tokens that share a key-value head; a register's lanes take one each. Queries are
rounded to bfloat16 for the products; all else is float32. A token's result depends neither on the tokens beside it, nor
on hidden columns between those that it sees: a node of a tree attends as in a plain text.
"""

from __future__ import annotations

import numpy as np

from ....planner.kernels.compiled import compiled
from .bfloat16_dots import MOST_LINES, MOST_ROWS, write_mixed, write_scores, write_weights
from .emitted import LANES
from .few_rows import Numbers, signed
from .host_rows import AttentionInput, Bits, bits_of, number_of, turn_and_write

UNUSED = np.uint32(16)  # bits of a float32 that bfloat16 lacks
prange = range  # compiled, it is numba's, which splits a loop among threads


@compiled
def pack(query: Numbers, first: int, panel: Bits) -> None:
    """Write the lines from `first` on, (lines, size), as a panel (size / 2, LANES, 2), filled up with zeros."""
    lines, size = min(LANES, len(query) - first), query.shape[1]
    for lane in range(LANES):
        for place in range(size):
            bits = bits_of(query[first + lane, place], UNUSED) if lane < lines else np.uint32(0)
            panel[place // 2, lane, place % 2] = bits


@compiled
def first_hidden(bias: Bits, row: int, first: int, last: int, groups: int) -> int:
    """Return the first column that one of a row's lines does not see, or the number of columns."""
    column: int = bias.shape[2]
    for line in range(first - first % groups, last, groups):  # a token's lines see alike
        place = 0
        while place < column and bias[row, line, place] == np.uint16(0):
            place += 1
        column = place
    return column


@compiled
def hide(scores: Numbers, bias: Bits, row: int, first: int, last: int, hidden: int) -> None:
    """Add the bias of columns from `hidden` on to some lines' scores (columns, LANES)."""
    for line in range(first, last):
        for column in range(hidden, bias.shape[2]):
            added = number_of(bias[row, line, column], UNUSED)
            number = scores[column, line - first]  # may be none where nobody looks
            scores[column, line - first] = added if added == np.float32(-np.inf) else number + added


@compiled
def attend_lines(query: Numbers, given: AttentionInput, out: Bits, row: int, head: int, line: int) -> None:
    """Write up to LANES lines' mix from `line` on, of a row's key-value head (lines, size)."""
    states, bias, first, span = given.states, given.bias, given.first, given.seen - given.first
    lines, size = query.shape
    groups, last = lines * len(states) // len(out), min(line + LANES, lines)
    panel, scores = np.empty((size // 2, LANES, 2), np.uint16), np.empty((span, LANES), np.float32)
    mixed, stride = np.empty((LANES, size), np.uint16), states.strides[1]
    keys = states.ctypes.data + row * states.strides[0] + first * stride + head * size * states.strides[2]
    values = keys + states.shape[2] // 2 * states.strides[2]
    pack(query, line, panel)
    for column in range(0, span, MOST_ROWS):
        found = scores.ctypes.data + column * scores.strides[0]
        write_scores(min(MOST_ROWS, span - column), keys + column * stride, stride, panel.ctypes.data, size, found)
    if bias.shape[2]:
        hidden = first_hidden(bias, row, line, last, groups)
        hide(scores, bias, row, line, last, hidden)
    write_weights(1, scores.ctypes.data, span)
    for lane in range(0, last - line, MOST_LINES):
        weights, found = scores.ctypes.data + lane * scores.strides[1], mixed.ctypes.data + lane * mixed.strides[0]
        write_mixed(min(MOST_LINES, last - line - lane), weights, values, stride, span, size, found, mixed.strides[0])
    count = lines // groups
    for lane in range(last - line):
        token, at = row * count + (line + lane) // groups, (head * groups + (line + lane) % groups) * size
        for place in range(size):
            out[token, np.uint64(at + place)] = mixed[lane, place]


@compiled
def attend_piece(qkv: Bits, given: AttentionInput, out: Bits, queries: Numbers, piece: int, pieces: int) -> None:
    """Write one piece's mix of a row's key-value head; `queries` is (rows * kv_heads, lines, size).

    With `pieces` 0, write the head's keys, values and queries, and mix too where a head is one piece.
    """
    kv_heads, part = given.states.shape[2] // given.turns.shape[1], piece // max(pieces, 1)
    row, head, query = part // kv_heads, part % kv_heads, queries[part]
    if pieces == 0:
        turn_and_write(qkv, given, query, row, head, head + 1)
    if pieces > 0 or len(query) <= LANES:
        attend_lines(query, given, out, row, head, piece % pieces * LANES if pieces else 0)


@compiled(parallel=True)
def shared_attend_pieces(qkv: Bits, given: AttentionInput, out: Bits, queries: Numbers, pieces: int) -> None:
    """Do `attend_piece` for all pieces of all rows and heads, by several threads."""
    for number in prange(len(queries) * max(pieces, 1)):
        attend_piece(qkv, given, out, queries, signed(number), pieces)


@compiled
def attend(qkv: Bits, given: AttentionInput, out: Bits, is_shared: bool) -> None:
    """Do what `attend_rows` does, for heads of a multiple of LANES numbers; keys are written before any mix."""
    size, kv_heads, rows = given.turns.shape[1] // 2, given.states.shape[2] // given.turns.shape[1], len(given.states)
    lines = len(out) // rows * given.heads // kv_heads
    queries, pieces = np.empty((rows * kv_heads, lines, size), np.float32), (lines + LANES - 1) // LANES
    for turn in range(1 if pieces == 1 else 2):
        own = pieces if turn else 0
        if is_shared:
            shared_attend_pieces(qkv, given, out, queries, own)
        else:
            for piece in range(len(queries) * max(own, 1)):
                attend_piece(qkv, given, out, queries, piece, own)
