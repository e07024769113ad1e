"""What a round reads of scores on a CPU: the path of a tree that the best tokens take.

The rows of a vocabulary are long and few of them are asked for, so nothing is computed of the others. Numbers come as
their bits, in two bytes for bfloat16 and in four for float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .few_rows import SUMS_MAY_BE_REORDERED, Numbers
from .host_rows import Bits, number_of, power_of_e, unused_bits

BLOCK = 128  # numbers whose greatest is found together
NONE = -1
SIGN, INFINITY = np.uint32(0x80000000), np.int32(0x7F800000)  # as a float32 holds them
GREATEST = np.int32(0x7FFFFFFF)


@compiled(inline="always")
def order_of(bits: Any, unused: np.uint32) -> np.int32:
    """Return a whole number that compares as the number with these bits does; what is no number is the greatest.

    Args:
        bits: of the number.
        unused: as `unused_bits` tells.
    """
    whole = np.uint32(np.uint32(bits) << unused)
    size = np.int32(whole & ~SIGN)
    if size > INFINITY:
        return GREATEST
    return size if whole < SIGN else np.int32(-size)  # so that zero has no sign


@compiled
def best_of(line: Bits) -> int:
    """Return the place of the greatest number, the first of equals; the first of those that are no numbers at all."""
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


@compiled
def follow(scores: Bits, tokens: Ints, parents: Ints, sizes: Ints, paths: Ints) -> None:
    """Do what `accept` does in every row's tree, drawing the best token behind the nodes of the path alone.

    Args:
        scores: (batch, at least nodes, vocabulary).
        tokens, parents: (batch, nodes), the root's column included, parents before children.
        sizes: (batch,), nodes of each row that are no padding.
        paths: (batch, 2, nodes + 1), written: how many nodes the path has and these; the token behind each.
    """
    for row in range(len(sizes)):
        node = length = 0
        while node != NONE:
            token = best_of(scores[row, node])
            paths[row, 0, length + 1], paths[row, 1, length] = node, token
            length += 1
            child = NONE
            for other in range(node + 1, sizes[row]):
                if parents[row, other] == node and tokens[row, other] == token:
                    child = other
            node = child
        paths[row, 0, 0] = length


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def log_of_sum(line: Bits, greatest: np.float32) -> np.float32:
    """Return the logarithm of the sum of e to all numbers, less the greatest of them."""
    unused, total = unused_bits(line), np.float64(0)
    for first in range(0, len(line), BLOCK):
        block, own = line[first : first + BLOCK], np.float32(0)
        for place in range(len(block)):
            own += power_of_e(number_of(block[place], unused) - greatest)
        total += own
    return np.float32(np.log(total))


@compiled
def rank(line: Bits, tokens: Ints) -> None:
    """Write the places of the greatest numbers, the greatest first, of equals the first; see `best_of`.

    Args:
        line: at least as many numbers as tokens.
        tokens: (any,), written.
    """
    unused, count = unused_bits(line), len(tokens)
    orders = np.full(count, -GREATEST)
    for first in range(0, len(line), BLOCK):
        block, own = line[first : first + BLOCK], np.int32(-GREATEST)
        for place in range(len(block)):
            order = order_of(block[place], unused)
            own = order if order > own else own
        if own <= orders[count - 1]:
            continue
        for place in range(len(block)):
            order, at = order_of(block[place], unused), count
            while at > 0 and orders[at - 1] < order:
                at -= 1
            if at < count:
                for later in range(count - 1, at, -1):
                    orders[later], tokens[later] = orders[later - 1], tokens[later - 1]
                orders[at], tokens[at] = order, first + place


@compiled(error_model="numpy")
def children(scores: Bits, tokens: Ints, log_probs: Numbers) -> bool:
    """Write the likeliest tokens behind every node, as `growth.draft.children_of` finds them.

    Returns whether all scores are numbers.

    Args:
        scores: (batch, width, vocabulary).
        tokens, log_probs: (batch, width, any), written; at most the vocabulary.
    """
    unused, are_numbers = unused_bits(scores), True
    for row in range(tokens.shape[0]):
        for node in range(tokens.shape[1]):
            line, own = scores[row, node], tokens[row, node]
            rank(line, own)
            greatest = number_of(line[own[0]], unused)
            log = log_of_sum(line, greatest)
            for child in range(len(own)):
                log_probs[row, node, child] = number_of(line[own[child]], unused) - greatest - log
            are_numbers = are_numbers and not np.isnan(log_probs[row, node, 0])
    return are_numbers
