"""What stands around a layer's products, for few rows on a CPU: norms, and attention of new tokens over a cache.

torch does each in ten calls or more, which at few rows take longer than their arithmetic. Numbers come as their bits,
in two bytes for bfloat16 and in four for float32; all arithmetic is in float32, and results are rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .few_rows import SUMS_MAY_BE_REORDERED, Numbers

Bits = NDArray[Any]  # uint16 of bfloat16, or uint32 of float32
prange = range  # compiled, it is numba's, which splits a loop among threads

LEAST_EXPONENT = -87.0  # e to less is no normal float32


@compiled(inline="always")
def unused_bits(numbers: Bits) -> np.uint32:
    """Return by how much the bits of a number are to be shifted to be those of a float32."""
    return np.uint32(32 - np.iinfo(numbers.dtype).bits)


@compiled(inline="always")
def number_of(bits: Any, unused: np.uint32) -> np.float32:
    """Return the float32 with these bits in front, and zeros behind."""
    return np.uint32(np.uint32(bits) << unused).view(np.float32)


@compiled(inline="always")
def bits_of(number: np.float32, unused: np.uint32) -> np.uint32:
    """Return the bits in front of a float32, the last one rounded to the nearest, ties to even."""
    whole = np.float32(number).view(np.uint32)
    odd = (whole >> unused) & np.uint32(1)
    half = (np.uint32(1) << unused) >> np.uint32(1)
    return (whole + (half - np.uint32(1) + odd if unused else np.uint32(0))) >> unused


@compiled(inline="always")
def power_of_e(exponent: np.float32) -> np.float32:
    """Return e to a power of at most 0, to the last bits of float32; about 1e-38 below LEAST_EXPONENT.

    Source: the polynomial of Cephes' expf, Moshier 1992, Methods and Programs for Mathematical Functions.
    """
    bounded = np.float32(LEAST_EXPONENT) if exponent < np.float32(LEAST_EXPONENT) else exponent  # NaN stays NaN
    doublings = np.floor(bounded * np.float32(1.44269504) + np.float32(0.5))
    left = bounded - doublings * np.float32(0.693359375) + doublings * np.float32(2.12194440e-4)
    series = np.float32(1.9875691e-4) * left + np.float32(1.3981999e-3)
    series = series * left + np.float32(8.3334519e-3)
    series = series * left + np.float32(4.1665796e-2)
    series = series * left + np.float32(1.6666667e-1)
    series = series * left + np.float32(0.5)
    series = series * left * left + left + np.float32(1)
    power: np.float32 = series * np.uint32((np.int32(doublings) + np.int32(127)) << np.int32(23)).view(np.float32)
    return power


@compiled(fastmath=SUMS_MAY_BE_REORDERED, error_model="numpy")
def norm_rows(x: Bits, weight: Bits, eps: float, out: Bits) -> None:
    """Write x / rms(x) * weight, line by line of the weight; what lies behind its lines in a row is left alone.

    Args:
        x: (rows, at least lines * size).
        weight: (lines, size).
        eps: added to the mean square.
        out: as x, or x itself.
    """
    lines, size = weight.shape
    unused, unused_of_weight = unused_bits(x), unused_bits(weight)
    for part in range(len(x) * lines):
        row, line = part // lines, part % lines
        first, total = line * size, np.float32(0)
        for place in range(size):
            number = number_of(x[row, first + place], unused)
            total += number * number
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + np.float32(eps))
        for place in range(size):
            number = number_of(x[row, first + place], unused) * scale
            out[row, first + place] = bits_of(number * number_of(weight[line, place], unused_of_weight), unused)


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def turn_and_write(
    qkv: Bits, turns: Bits, states: Bits, columns: Ints, query: Numbers,
    heads: int, scale: float, row: int, first_head: int, last_head: int,
) -> None:  # fmt: skip
    """Write a row's keys and values, and its queries, turned and scaled, (kv heads * n * groups, size)."""
    capacity, size = states.shape[1], turns.shape[1] // 2
    count, half, kv_heads = len(columns) // len(states), size // 2, states.shape[2] // (2 * size)
    groups, width, unused = heads // kv_heads, kv_heads * size, unused_bits(qkv)
    for head in range(first_head, last_head):
        for node in range(count):
            token, line = row * count + node, ((head - first_head) * count + node) * groups
            column = columns[token] % capacity
            for lane in range(groups + 1):  # the queries of the head, then its key
                at = (head * groups + lane if lane < groups else heads + head) * size
                for place in range(half):
                    left = number_of(qkv[token, at + place], unused)
                    right = number_of(qkv[token, at + half + place], unused)
                    turned_left = left * number_of(turns[token, place], unused)
                    turned_left += right * number_of(turns[token, size + place], unused)
                    turned_right = right * number_of(turns[token, half + place], unused)
                    turned_right += left * number_of(turns[token, size + half + place], unused)
                    if lane < groups:
                        query[line + lane, place] = turned_left * np.float32(scale)
                        query[line + lane, half + place] = turned_right * np.float32(scale)
                    else:
                        states[row, column, head * size + place] = bits_of(turned_left, unused)
                        states[row, column, head * size + half + place] = bits_of(turned_right, unused)
            for place in range(size):
                states[row, column, width + head * size + place] = qkv[token, (heads + kv_heads + head) * size + place]


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def score(query: Numbers, own: Numbers, scores: Numbers, column: int, first: int, last: int) -> None:
    """Write one column of the scores of some lines: their queries times one key (size,)."""
    line = first
    while line + 4 <= last:
        a = b = c = d = np.float32(0)
        for place in range(len(own)):
            a += query[line, place] * own[place]
            b += query[line + 1, place] * own[place]
            c += query[line + 2, place] * own[place]
            d += query[line + 3, place] * own[place]
        scores[line, column], scores[line + 1, column] = a, b
        scores[line + 2, column], scores[line + 3, column] = c, d
        line += 4
    while line < last:
        a = np.float32(0)
        for place in range(len(own)):
            a += query[line, place] * own[place]
        scores[line, column] = a
        line += 1


@compiled(fastmath=SUMS_MAY_BE_REORDERED, error_model="numpy")
def weigh(scores: Numbers) -> None:
    """Make weights that sum up to 1 of one line's scores (columns,), in place; all are NaN where a score is."""
    greatest, total = np.float32(-np.inf), np.float32(0)
    for column in range(len(scores)):
        greatest = max(greatest, scores[column])
    for column in range(len(scores)):
        below = scores[column] - greatest
        scores[column] = np.float32(0) if below == np.float32(-np.inf) else power_of_e(below)
    for column in range(len(scores)):
        total += scores[column]
    for column in range(len(scores)):
        scores[column] /= total


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def attend_row(
    qkv: Bits, turns: Bits, states: Bits, bias: Bits, columns: Ints, out: Bits,
    first: int, seen: int, heads: int, scale: float, row: int, first_head: int, last_head: int,
) -> None:  # fmt: skip
    """Do what `attend_rows` does for one row of the batch and some of its key-value heads."""
    size, count = turns.shape[1] // 2, len(columns) // len(states)
    kv_heads = states.shape[2] // (2 * size)
    groups, width, unused = heads // kv_heads, kv_heads * size, unused_bits(qkv)
    lines, span = count * groups, seen - first  # lines of one head
    every = (last_head - first_head) * lines
    query, mixed = np.empty((every, size), np.float32), np.zeros((every, size), np.float32)
    scores, own = np.empty((every, span), np.float32), np.empty(size, np.float32)
    turn_and_write(qkv, turns, states, columns, query, heads, scale, row, first_head, last_head)
    for column in range(span):  # the heads of a column lie together
        for head in range(first_head, last_head):
            for place in range(size):
                own[place] = number_of(states[row, first + column, head * size + place], unused)
            line = (head - first_head) * lines
            score(query, own, scores, column, line, line + lines)
    for line in range(every):
        if bias.shape[2]:
            for column in range(span):  # the score of what nobody sees may be no number
                added = number_of(bias[row, line % lines, column], unused)
                scores[line, column] = added if added == np.float32(-np.inf) else scores[line, column] + added
        weigh(scores[line])
    for column in range(span):
        for head in range(first_head, last_head):
            for place in range(size):
                own[place] = number_of(states[row, first + column, width + head * size + place], unused)
            for line in range((head - first_head) * lines, (head - first_head + 1) * lines):
                weight = scores[line, column]
                if weight != np.float32(0):  # nor may its values
                    for place in range(size):
                        mixed[line, place] += weight * own[place]
    for line in range(every):
        head, node, lane = first_head + line // lines, line % lines // groups, line % groups
        for place in range(size):
            out[row * count + node, (head * groups + lane) * size + place] = bits_of(mixed[line, place], unused)


@compiled
def attend_rows(
    qkv: Bits, turns: Bits, states: Bits, bias: Bits, columns: Ints, out: Bits,
    first: int, seen: int, heads: int, scale: float,
) -> None:  # fmt: skip
    """Turn queries and keys of new tokens, write their keys and values into a cache, and mix what they see there.

    Args:
        qkv: (batch * n, (heads + 2 * kv_heads) * size), queries, keys, values.
        turns: (batch * n, 2 * size), cosines, then signed sines: x turns to x * cosine + roll(x, size / 2) * sine.
        states: (batch, capacity, 2 * kv_heads * size), keys then values; written.
        bias: (batch, n * groups, seen - first), added to the scores, a head's lines node by node; without numbers in
            the last dimension nothing is.
        columns: (batch * n,), where each token is written: its column, perhaps more by whole capacities.
        out: (batch * n, heads * size), written.
        first, seen: the columns in sight are those from `first` to `seen`.
        heads: of queries.
        scale: of scores.
    """
    for row in range(len(states)):
        kv_heads = states.shape[2] // turns.shape[1]
        attend_row(qkv, turns, states, bias, columns, out, first, seen, heads, scale, row, 0, kv_heads)


@compiled(parallel=True)
def shared_attend_rows(
    qkv: Bits, turns: Bits, states: Bits, bias: Bits, columns: Ints, out: Bits,
    first: int, seen: int, heads: int, scale: float,
) -> None:  # fmt: skip
    """Do what `attend_rows` does, by several threads: they share the rows, or the heads of a single one."""
    kv_heads = states.shape[2] // turns.shape[1]
    at_once = kv_heads if len(states) > 1 else 1
    for part in prange(len(states) * kv_heads // at_once):
        row, head = part * at_once // kv_heads, part * at_once % kv_heads
        attend_row(qkv, turns, states, bias, columns, out, first, seen, heads, scale, row, head, head + at_once)
