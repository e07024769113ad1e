"""What a round reads of scores on a CPU: the best tokens of the few long rows that are read, and how likely they are.

Numbers come as their bits, in two bytes for bfloat16 and in four for float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .few_rows import SUMS_MAY_BE_REORDERED, Numbers, signed
from .host_rows import Bits, number_of, power_of_e, unused_bits
from .threads import MOST_ALONE

Orders = NDArray[np.int32]

BLOCK = 128  # numbers whose greatest is found together
FEW = 8  # numbers that are looked for by blocks as large
SMALL_BLOCK = 16  # by which more are
SIGN, INFINITY = np.uint32(0x80000000), np.int32(0x7F800000)  # as a float32 holds them
GREATEST = np.int32(0x7FFFFFFF)
prange = range  # compiled, it is numba's, which splits a loop among threads


@compiled(inline="always")
def order_of(bits: Any, unused: np.uint32) -> np.int32:
    """Return a whole number that compares as the number with these bits does; NaN is the greatest."""
    whole = np.uint32(np.uint32(bits) << unused)
    size = np.int32(whole & ~SIGN)
    if size > INFINITY:
        return GREATEST
    return size if whole < SIGN else np.int32(-size)  # so that zero has no sign


@compiled
def best_of(line: Bits) -> int:
    """Return the place of the greatest number, the first of equals; the first NaN where there is one."""
    unused, greatest, start = unused_bits(line), np.int32(-GREATEST), 0
    for first in range(0, len(line), BLOCK):
        block, own = line[first : first + BLOCK], greatest
        for place in range(len(block)):
            order = order_of(block[place], unused)
            own = order if order > own else own
        if own > greatest:
            greatest, start = own, first
    block, place = line[start:], 0
    while order_of(block[place], unused) != greatest:
        place += 1
    return start + place


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def log_of_sum(line: Bits, greatest: np.float32) -> np.float32:
    """Return log(sum of e^(number - greatest)) over all numbers."""
    unused, total = unused_bits(line), np.float64(0)
    for first in range(0, len(line), BLOCK):
        block, own = line[first : first + BLOCK], np.float32(0)
        for place in range(len(block)):
            own += power_of_e(number_of(block[place], unused) - greatest)
        total += own
    return np.float32(np.log(total))


@compiled
def greatest_of_blocks(line: Bits, unused: np.uint32, block: int, found: Orders) -> None:
    """Write the greatest `order_of` each block; the last may be shorter."""
    for number in range(len(found)):
        part, own = line[number * block : (number + 1) * block], np.int32(-GREATEST)
        for place in range(len(part)):
            order = order_of(part[place], unused)
            own = order if order > own else own
        found[number] = own


@compiled
def reached_by(orders: Orders, count: int) -> np.int32:
    """Return the greatest number that at least `count` of the orders reach; the least order where they are fewer."""
    low, high = np.int64(-GREATEST), np.int64(GREATEST)
    while low < high:
        middle = (low + high + 1) >> 1
        reach, least = 0, np.int32(middle)
        for place in range(len(orders)):
            reach += orders[place] >= least
        if reach >= count:
            low = middle
        else:
            high = middle - 1
    return np.int32(low)


@compiled
def insert(line: Bits, first: int, last: int, unused: np.uint32, orders: Orders, tokens: Ints) -> None:
    """Insert numbers from `first` to `last` into the greatest so far, after equal ones."""
    count = np.uint64(len(tokens))
    for token in range(first, last):
        order, at = order_of(line[np.uint64(token)], unused), count - np.uint64(1)
        if order <= orders[at]:
            continue
        while at > np.uint64(0) and orders[at - np.uint64(1)] < order:
            orders[at], tokens[at] = orders[at - np.uint64(1)], tokens[at - np.uint64(1)]
            at -= np.uint64(1)
        orders[at], tokens[at] = order, token


@compiled
def rank(line: Bits, tokens: Ints) -> None:
    """Write the places of the greatest numbers, the greatest first, of equals the first; see `best_of`.

    The `count` greatest blocks each hold a number as great as the least of their maxima: smaller ones are not compared.
    """
    unused, count = unused_bits(line), len(tokens)
    block = BLOCK if count <= FEW else SMALL_BLOCK
    greatest = np.empty((len(line) + block - 1) // block, np.int32)
    greatest_of_blocks(line, unused, block, greatest)
    least = reached_by(greatest, count) if count > FEW else np.int32(-GREATEST)
    orders = np.full(count, np.int32(-GREATEST))
    for number in range(len(greatest)):
        if greatest[number] >= least and greatest[number] > orders[count - 1]:
            insert(line, number * block, min((number + 1) * block, len(line)), unused, orders, tokens)


@compiled(error_model="numpy")
def children_of_node(line: Bits, tokens: Ints, log_probs: Numbers) -> None:
    """Write the likeliest children (any,) of one node, from its scores (vocabulary,)."""
    unused = unused_bits(line)
    rank(line, tokens)
    greatest = number_of(line[tokens[0]], unused)
    log = log_of_sum(line, greatest)
    for child in range(len(tokens)):
        log_probs[child] = number_of(line[tokens[child]], unused) - greatest - log


@compiled(parallel=True)
def shared_children(scores: Bits, tokens: Ints, log_probs: Numbers) -> None:
    """Do what `children_of_node` does for every node, by several threads."""
    width = tokens.shape[1]
    for node in prange(tokens.shape[0] * width):
        row, place = signed(node) // width, signed(node) % width
        children_of_node(scores[row, place], tokens[row, place], log_probs[row, place])


@compiled
def children(scores: Bits, tokens: Ints, log_probs: Numbers, is_shared: bool) -> bool:
    """Write every node's likeliest children, as `growth.draft.children_of` does; return whether all scores are numbers.

    `scores` is (batch, width, vocabulary); `tokens` and `log_probs` are (batch, width, any), at most the vocabulary.
    """
    nodes, are_numbers = tokens.shape[0] * tokens.shape[1], True
    if is_shared and nodes * scores.shape[2] > MOST_ALONE:
        shared_children(scores, tokens, log_probs)
    else:
        for row in range(tokens.shape[0]):
            for node in range(tokens.shape[1]):
                children_of_node(scores[row, node], tokens[row, node], log_probs[row, node])
    for row in range(tokens.shape[0]):
        for node in range(tokens.shape[1]):
            are_numbers = are_numbers and not np.isnan(log_probs[row, node, 0])  # of a node's, it comes first
    return are_numbers
