"""The work around a layer's products, for few rows on a CPU: norms, and attention of new tokens over a cache.

torch takes ten calls or more for each. Numbers come as their bits, in two bytes for bfloat16 and in four for float32;
all arithmetic is in float32, and results are rounded once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import ZERO, compiled
from .few_rows import SUMS_MAY_BE_REORDERED, Numbers, signed

Bits = NDArray[Any]  # uint16 of bfloat16, or uint32 of float32
prange = range  # compiled, it is numba's, which splits a loop among threads
COLUMNS = 4  # of a cache that take part together
LEAST_EXPONENT = -87.0  # e to less is no normal float32


class AttentionInput(NamedTuple):
    """What new tokens attend with, for `attend_rows`; the columns in sight are those from `first` to `seen`."""

    turns: Bits  # (batch * n, 2 * size), cosines, then signed sines: x turns to x * cosine + roll(x, size / 2) * sine
    states: Bits  # (batch, capacity, 2 * kv_heads * size), keys then values; written
    bias: Bits  # (batch, n * groups, seen - first), added to a head's scores, node by node; perhaps without any numbers
    columns: Ints  # (batch * n,), where each token is written
    first: int
    seen: int
    heads: int
    scale: float  # of the scores


@compiled(inline="always")
def unused_bits(numbers: Bits) -> np.uint32:
    """Return the shift that makes a number's bits those of a float32."""
    return np.uint32(32 - np.iinfo(numbers.dtype).bits)


@compiled(inline="always")
def number_of(bits: Any, unused: np.uint32) -> np.float32:
    """Return the float32 with these upper bits, and zeros below."""
    return np.uint32(np.uint32(bits) << unused).view(np.float32)


@compiled(inline="always")
def bits_of(number: np.float32, unused: np.uint32) -> np.uint32:
    """Return the upper bits of a float32, rounded to the nearest, ties to even."""
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
    """Write x / rms(x) * weight into out, perhaps x, by lines of the weight (lines, size); the rest is not touched."""
    lines, size = weight.shape
    unused, unused_of_weight = unused_bits(x), unused_bits(weight)
    for part in range(len(x) * lines):
        row, line = part // lines, part % lines
        first, total = line * size, np.float32(0)
        for place in range(size):
            number = number_of(x[row, np.uint64(first + place)], unused)
            total += number * number
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + np.float32(eps))
        for place in range(size):
            number = number_of(x[row, np.uint64(first + place)], unused) * scale
            number *= number_of(weight[line, place], unused_of_weight)
            out[row, np.uint64(first + place)] = bits_of(number, unused)


@compiled(parallel=True)
def shared_norm_rows(x: Bits, weight: Bits, eps: float, out: Bits) -> None:
    """Do what `norm_rows` does, by several threads."""
    for row in prange(len(x)):
        norm_rows(x[row : row + 1], weight, eps, out[row : row + 1])


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def turn(lane: Bits, turns: Bits, turned: Numbers) -> None:
    """Write a head's lane (size,), turned by its angles: cosines, then signed sines, (2 * size,)."""
    size, half, unused = len(lane), len(lane) // 2, unused_bits(lane)
    lefts, rights, turned_lefts, turned_rights = lane[:half], lane[half:], turned[:half], turned[half:]
    left_cosines, right_cosines = turns[:half], turns[half:size]
    left_sines, right_sines = turns[size : size + half], turns[size + half :]
    for place in range(half):
        left, right = number_of(lefts[place], unused), number_of(rights[place], unused)
        turned_left = left * number_of(left_cosines[place], unused)
        turned_right = right * number_of(right_cosines[place], unused)
        turned_lefts[place] = turned_left + right * number_of(left_sines[place], unused)
        turned_rights[place] = turned_right + left * number_of(right_sines[place], unused)


@compiled
def turn_and_write(qkv: Bits, given: AttentionInput, query: Numbers, row: int, first_head: int, last_head: int) -> None:
    """Write a row's keys, values and queries, turned and scaled, (kv heads * n * groups, size)."""
    turns, states, columns, heads, scale = given.turns, given.states, given.columns, given.heads, given.scale
    capacity, size = states.shape[1], turns.shape[1] // 2
    count, kv_heads = len(columns) // len(states), states.shape[2] // (2 * size)
    groups, width, unused = heads // kv_heads, kv_heads * size, unused_bits(qkv)
    turned = np.empty(size, np.float32)
    for head in range(first_head, last_head):
        for node in range(count):
            token, line = row * count + node, ((head - first_head) * count + node) * groups
            column = columns[token] % capacity  # never outside the cache
            for lane in range(groups):
                at, asking = (head * groups + lane) * size, query[line + lane]
                turn(qkv[token, at : at + size], turns[token], asking)
                for place in range(size):
                    asking[place] *= np.float32(scale)
            at, own = (heads + head) * size, head * size
            turn(qkv[token, at : at + size], turns[token], turned)
            for place in range(size):
                states[row, column, np.uint64(own + place)] = bits_of(turned[place], unused)
            for place in range(size):
                states[row, column, np.uint64(width + own + place)] = qkv[token, np.uint64(width + at + place)]


@compiled
def widen_block(states: Bits, row: int, column: int, last: int, at: int, block: Numbers) -> None:
    """Write the numbers from `at` on of some columns before the last, (COLUMNS, size), filled up with zeros."""
    unused, size = unused_bits(states), block.shape[1]
    for number in range(COLUMNS):
        if column + number < last:
            for place in range(size):
                block[number, place] = number_of(states[row, column + number, np.uint64(at + place)], unused)
        else:
            for place in range(size):
                block[number, place] = np.float32(0)


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def score_block(query: Numbers, keys: Numbers, scores: Numbers, column: int, first: int, last: int) -> None:
    """Write some lines' scores of COLUMNS columns: their queries times the keys (COLUMNS, size)."""
    for line in range(first, last):
        a = b = c = d = np.float32(0)
        for place in range(query.shape[1]):
            a += query[line, place] * keys[0, place]
            b += query[line, place] * keys[1, place]
            c += query[line, place] * keys[2, place]
            d += query[line, place] * keys[3, place]
        scores[line, column], scores[line, column + 1] = a, b
        scores[line, column + 2], scores[line, column + 3] = c, d


@compiled
def mask(scores: Numbers, bias: Bits) -> None:
    """Add a line's bias to its scores; the score of a hidden column may be NaN."""
    unused = unused_bits(bias)
    for column in range(len(bias)):
        added = number_of(bias[column], unused)
        scores[column] = added if added == np.float32(-np.inf) else scores[column] + added


@compiled(fastmath=SUMS_MAY_BE_REORDERED, error_model="numpy")
def weigh(scores: Numbers) -> None:
    """Turn one line's scores (columns,) into weights of sum 1, in place; all are NaN where a score is."""
    greatest, total = np.float32(-np.inf), np.float64(0)
    for column in range(len(scores)):
        greatest = max(greatest, scores[column])
    for column in range(len(scores)):
        below = scores[column] - greatest
        scores[column] = np.float32(0) if below == np.float32(-np.inf) else power_of_e(below)
    for column in range(len(scores)):
        total += np.float64(scores[column])  # so that what nobody sees between others changes next to no rounding
    for column in range(len(scores)):
        scores[column] /= np.float32(total)


@compiled(fastmath={"reassoc"})
def are_numbers(block: Numbers) -> bool:
    """Return whether a block holds neither infinities nor NaN."""
    total = np.float32(0)
    for number in range(COLUMNS):
        for place in range(block.shape[1]):
            total += block[number, place] * np.float32(0)
    return bool(total == np.float32(0))


@compiled(fastmath={"contract"})
def mix_block(weights: Numbers, values: Numbers, mixed: Numbers, column: int, first: int, last: int) -> None:
    """Add the weighted values (COLUMNS, size) to lines (lines, size), by columns: weight 0 changes nothing."""
    for line in range(first, last):
        a, b = weights[line, column], weights[line, column + 1]
        c, d = weights[line, column + 2], weights[line, column + 3]
        for place in range(mixed.shape[1]):
            number = mixed[line, place] + a * values[0, place]
            number += b * values[1, place]
            number += c * values[2, place]
            mixed[line, place] = number + d * values[3, place]


@compiled(fastmath={"contract"})
def mix_seen(weights: Numbers, values: Numbers, mixed: Numbers, column: int, first: int, last: int) -> None:
    """Do what `mix_block` does where hidden columns may hold NaN."""
    for line in range(first, last):
        for number in range(COLUMNS):
            weight = weights[line, column + number]
            if weight != np.float32(0):
                for place in range(mixed.shape[1]):
                    mixed[line, place] += weight * values[number, place]


@compiled
def attend_row(qkv: Bits, given: AttentionInput, out: Bits, row: int, first_head: int, last_head: int) -> None:
    """Do what `attend_rows` does for one row of the batch and some of its key-value heads."""
    turns, states, bias, columns = given.turns, given.states, given.bias, given.columns
    first, seen, heads = given.first, given.seen, given.heads
    size, count = turns.shape[1] // 2, len(columns) // len(states)
    kv_heads = states.shape[2] // (2 * size)
    groups, width, unused = heads // kv_heads, kv_heads * size, unused_bits(qkv)
    lines, span = count * groups, seen - first  # lines of one head
    every = (last_head - first_head) * lines
    query, mixed = np.empty((every, size), np.float32), np.zeros((every, size), np.float32)
    padded, block = (span + COLUMNS - 1) // COLUMNS * COLUMNS, np.empty((COLUMNS, size), np.float32)
    scores = np.empty((every, padded), np.float32)
    turn_and_write(qkv, given, query, row, first_head, last_head)
    for column in range(0, span, COLUMNS):  # the heads of a column lie together
        for head in range(first_head, last_head):
            line = (head - first_head) * lines
            widen_block(states, row, first + column, seen, head * size, block)
            score_block(query, block, scores, column, line, line + lines)
    for line in range(every):
        if bias.shape[2]:
            mask(scores[line], bias[row, line % lines])
        weigh(scores[line, :span])
        for column in range(span, padded):
            scores[line, column] = np.float32(0)
    for column in range(0, span, COLUMNS):
        for head in range(first_head, last_head):
            line = (head - first_head) * lines
            widen_block(states, row, first + column, seen, width + head * size, block)
            if not bias.shape[2] or are_numbers(block):
                mix_block(scores, block, mixed, column, line, line + lines)
            else:
                mix_seen(scores, block, mixed, column, line, line + lines)
    for line in range(every):
        head, node, lane = first_head + line // lines, line % lines // groups, line % groups
        token, at = row * count + node, (head * groups + lane) * size
        for place in range(size):
            out[token, np.uint64(at + place)] = bits_of(mixed[line, place], unused)


@compiled
def attend_rows(qkv: Bits, given: AttentionInput, out: Bits) -> None:
    """Turn new tokens' queries and keys, write keys and values into a cache, and mix what the tokens see there.

    `qkv` (batch * n, (heads + 2 * kv_heads) * size) holds queries, keys, values; `out` is (batch * n, heads * size).
    """
    for row in range(len(given.states)):
        attend_row(qkv, given, out, row, ZERO, given.states.shape[2] // given.turns.shape[1])


@compiled(parallel=True)
def shared_attend_rows(qkv: Bits, given: AttentionInput, out: Bits) -> None:
    """Do what `attend_rows` does, by several threads: they share the rows, or the heads of a single one."""
    kv_heads = given.states.shape[2] // given.turns.shape[1]
    at_once = kv_heads if len(given.states) > 1 else 1
    for part in prange(len(given.states) * kv_heads // at_once):
        row, head = signed(part) * at_once // kv_heads, signed(part) * at_once % kv_heads
        attend_row(qkv, given, out, row, head, head + at_once)
