"""Scores masked by top-k, top-p and min-p on a CPU, one vocabulary line at a time.

The least score that stays decides all, and is bisected among all floats, in some thirty passes. A sort of a large
vocabulary takes seventeen, with branches.
"""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .few_rows import SUMS_MAY_BE_REORDERED, Numbers
from .host_rows import Bits, power_of_e
from .host_scores import BLOCK, GREATEST, Orders, order_of, reached_by

NEVER = np.float32(-np.inf)
LEAST_ORDER = np.int64(-GREATEST)  # of no number


@compiled
def mask_line(line: Bits, scores: Numbers, top_k: int, left_out: np.float32, min_p: np.float32, room: Orders) -> None:
    """Set the scores (vocabulary,) float32 to -inf that a request's settings exclude; `line` is the same memory.

    `left_out` is 1 less the probability that stays; settings of 0 exclude none. `room` (vocabulary,) is overwritten.
    """
    if top_k > 0:
        orders_of(line, room)
        keep_best(scores, room, reached_by(room, min(top_k, len(room))))
    if left_out > np.float32(0):
        orders_of(line, room)
        keep_nucleus(scores, room, left_out)
    if min_p > np.float32(0):
        keep_likely(scores, min_p)


@compiled
def orders_of(line: Bits, orders: Orders) -> None:
    """Write whole numbers that compare as the numbers with these bits do."""
    for place in range(len(orders)):
        orders[place] = order_of(line[place], np.uint32(0))


@compiled
def keep_best(scores: Numbers, orders: Orders, least: np.int32) -> None:
    """Mask the scores whose order is below `least`."""
    for place in range(len(scores)):
        scores[place] = scores[place] if orders[place] >= least else NEVER


@compiled
def greatest_of(scores: Numbers) -> np.float32:
    """Return the greatest number."""
    greatest = NEVER
    for place in range(len(scores)):
        greatest = scores[place] if scores[place] > greatest else greatest
    return np.float32(greatest)


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def mass_up_to(masses: Numbers, orders: Orders, most: np.int32) -> float:
    """Return the total mass of orders up to `most`."""
    total = np.float64(0)
    for first in range(0, len(masses), BLOCK):
        block, own_orders, own = masses[first : first + BLOCK], orders[first : first + BLOCK], np.float32(0)
        for place in range(len(block)):
            own += block[place] if own_orders[place] <= most else np.float32(0)
        total += np.float64(own)
    return total


@compiled
def keep_nucleus(scores: Numbers, orders: Orders, left_out: np.float32) -> None:
    """Mask all but the fewest best scores that hold the probability; of equal ones the last stay.

    Source: Holtzman et al. 2019, arXiv:1904.09751, Sec. 3.1.
    """
    top, masses = greatest_of(scores), np.empty(len(scores), np.float32)
    best = LEAST_ORDER
    for place in range(len(scores)):
        masses[place] = power_of_e(scores[place] - top) if scores[place] != NEVER else np.float32(0)
        best = np.int64(orders[place]) if orders[place] > best else best
    mass = mass_up_to(masses, orders, np.int32(best)) * np.float64(left_out)
    low, high = LEAST_ORDER - 1, best  # up to the first there is too little; up to the second more, or all there is
    while high - low > 1:
        middle = (low + high) >> 1
        if mass_up_to(masses, orders, np.int32(middle)) > mass:
            high = middle
        else:
            low = middle
    least, equal, each = np.int32(high), 0, np.float32(0)
    for place in range(len(scores)):
        equal += orders[place] == least
        each = masses[place] if orders[place] == least else each
    below = mass_up_to(masses, orders, np.int32(max(low, LEAST_ORDER))) if low >= LEAST_ORDER else 0.0
    lost = 0  # of the equal ones, the first
    while lost < equal - 1 and below + (lost + 1) * np.float64(each) <= mass:
        lost += 1
    met = 0
    for place in range(len(scores)):
        if orders[place] == least:
            met += 1
            if met <= lost:
                scores[place] = NEVER
        elif orders[place] < least:
            scores[place] = NEVER


@compiled
def keep_likely(scores: Numbers, share: np.float32) -> None:
    """Mask the scores below that share of the best one's probability."""
    top = greatest_of(scores)
    for place in range(len(scores)):
        if power_of_e(scores[place] - top) < share:
            scores[place] = NEVER


@compiled
def mask_rows(lines: Bits, scores: Numbers, top_k: Ints, left_out: Numbers, min_p: Numbers) -> None:
    """Do what `mask_line` does for (rows, n, vocabulary), with settings (rows,)."""
    room = np.empty(scores.shape[2], np.int32)
    for row in range(scores.shape[0]):
        for node in range(scores.shape[1]):
            mask_line(lines[row, node], scores[row, node], top_k[row], left_out[row], min_p[row], room)
