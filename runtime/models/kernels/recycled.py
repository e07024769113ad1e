"""Token Recycling on a CPU, by one call to take committed tokens in, and one to look nodes up."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ....planner.kernels.arrays import Floats32, Ints
from ....planner.kernels.compiled import compiled
from .bfloat16_rows import NormedProduct, normed_product
from .few_rows import Halves
from .host_scores import children

APART = 1e-4  # between tokens of which nothing is known; see `models.block.APART`
LEAST_LEFT = 1e-9  # of the probability, for all tokens but the successors together


class SuccessorArrays(NamedTuple):
    """The successors of the tokens of each slot; `known` are the tokens themselves."""

    known: Ints  # (slots, capacity)
    ids: Ints  # (slots, capacity, successors)
    log_probs: Floats32  # likewise


@compiled
def take_in(
    given: Halves,
    tokens: Ints,
    lines: Ints,
    logits: Halves,
    kept: SuccessorArrays,
    head: NormedProduct,
    is_shared: bool,
) -> None:
    """Write committed tokens (rows,), and with each the likeliest successors of the token before it.

    `given` (rows, hidden) are the target's last hidden states at the tokens before; `lines` (rows,) are slot * capacity
    + column. `logits` (any, vocabulary) is overwritten. `head` is the final norm and the vocabulary's product.
    """
    known, ids, log_probs = kept
    for first in range(0, len(given), len(logits)):
        count = min(len(logits), len(given) - first)
        shape, own = (1, count, ids.shape[2]), logits[:count]
        best, found = np.empty(shape, np.int64), np.empty(shape, np.float32)
        part = given[first : first + count]
        normed_product(part, head.scale, head.eps, head.weight, head.bias, head.no_residual, own, is_shared)
        children(own.reshape(1, count, own.shape[1]), best, found, is_shared)
        for row in range(count):
            slot, column = lines[first + row] // known.shape[1], lines[first + row] % known.shape[1]
            known[slot, column] = tokens[first + row]
            ids[slot, column], log_probs[slot, column] = best[0, row], found[0, row]


@compiled
def place_of(known: Ints, token: int, length: int) -> int:
    """Return where a token's newest successors are in a text (capacity,) of that length; 0 for none."""
    for place in range(length - 1, 0, -1):
        if known[place - 1] == token:
            return place
    return 0


@compiled
def fill(ids: Ints, log_probs: Floats32, vocabulary: int, below: Ints, chances: Floats32) -> None:
    """Write a node's children: its successors, likeliest first, -inf after the last, then the lowest other ids."""
    said, weight = 0, 0.0
    while said < len(ids) and np.isfinite(log_probs[said]):
        weight += math.exp(np.float64(log_probs[said]))
        said += 1
    for child in range(min(said, len(below))):
        below[child], chances[child] = ids[child], log_probs[child]
    others = np.float64(np.float32(math.log(max(1.0 - weight, LEAST_LEFT))))
    last = np.float64(log_probs[said - 1]) if said else 0.0
    even, token = min(others - math.log(max(vocabulary - said, 1)), last), 0
    for child in range(said, len(below)):
        while is_among(token, ids, said):
            token += 1
        below[child], chances[child] = token, even - APART * (child - said + 1)
        token += 1


@compiled
def is_among(token: int, ids: Ints, count: int) -> bool:
    """Return whether a token is one of the first ids."""
    found = False
    for place in range(count):
        found |= ids[place] == token
    return found


@compiled
def look_up(
    tokens: Ints,  # (batch, width), the nodes'
    lengths: Ints,  # (batch, 1 or width), tokens of the texts before their trees
    kept: SuccessorArrays,
    vocabulary: int,
    below: Ints,  # with chances (batch, width, children), written
    chances: Floats32,
) -> bool:
    """Write the children of nodes after texts; return whether all known scores are numbers."""
    known, ids, log_probs = kept
    nobody, nothing = ids[0, 0, :0], log_probs[0, 0, :0]
    for row in range(len(tokens)):
        for node in range(tokens.shape[1]):
            length = lengths[row, min(node, lengths.shape[1] - 1)]
            place = place_of(known[row], tokens[row, node], length)
            if place == 0:
                fill(nobody, nothing, vocabulary, below[row, node], chances[row, node])
                continue
            if np.isnan(log_probs[row, place]).any():
                return False
            fill(ids[row, place], log_probs[row, place], vocabulary, below[row, node], chances[row, node])
    return True
