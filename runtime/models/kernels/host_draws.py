"""Draws from sampled scores on a CPU, along the drawn path of a tree alone.

A draw is the best score plus noise, which is two logarithms of a hash for every token. Few tokens can win: a block's
best score must gain enough noise to pass the best so far, so its hash must exceed a bound. So blocks are hashed, and
logarithms taken of the rest. The best block comes first, so that the bound is high from the start.
"""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .few_rows import Numbers
from .host_masks import mask_line
from .host_noise import HALF_STEP, Hashes, hash_of, key_of, noise_of
from .host_rows import Bits, number_of, unused_bits
from .host_scores import BLOCK, GREATEST, INFINITY, Orders, best_of, greatest_of_blocks, order_of

MOST_NOISE = 37.0  # more than any is: 36.8 is that of the last number below 1
LEAST_NOISE = -3.0  # few have less
NONE = -1  # of the nodes of a tree
NO_TOKEN = -1  # is drawn from scores that are no numbers
SLACK, RELATIVE_SLACK = 1e-3, 1e-6  # by which noise may be less than what is missing: sums are rounded to float32


@compiled(error_model="numpy")
def hash_block(key: np.uint64, first: int, hashes: Hashes) -> None:
    """Write 53 random bits of each token of a block."""
    for place in range(len(hashes)):
        hashes[place] = hash_of(key, first + place)


@compiled(inline="always")
def least_hash(noise: float) -> np.uint64:
    """Return a hash below which all have less noise."""
    if not noise > LEAST_NOISE:
        return np.uint64(0)
    hashed = np.uint64(np.exp(-np.exp(-noise)) / HALF_STEP)
    return hashed - min(hashed, np.uint64(1))


@compiled(error_model="numpy")
def drawn_from(line: Bits, seed: int, place: int, temperature: np.float32, greatest: Orders, hashes: Hashes) -> int:
    """Return the token drawn from a line (vocabulary,) at a place of a text, the first of equals, or the first NaN.

    Temperature 0 takes the best. `greatest` (a number for each block) and `hashes` (BLOCK,) are overwritten.
    """
    if temperature == np.float32(0):
        return best_of(line)
    unused = unused_bits(line)
    greatest_of_blocks(line, unused, BLOCK, greatest)
    top = int(np.argmax(greatest))
    if greatest[top] == GREATEST:
        return best_of(line)
    key = key_of(seed, place)
    token, best = 0, np.float32(-np.inf)
    for turn in range(-1, len(greatest)):
        number = top if turn < 0 else turn
        if turn == top:
            continue
        first = number * BLOCK
        block = line[first : first + BLOCK]
        order = greatest[number]
        most = np.int32(order if order >= 0 else -order | np.int32(-0x80000000)).view(np.float32) / temperature
        missing = np.float64(best) - np.float64(most)
        missing -= SLACK + RELATIVE_SLACK * (abs(np.float64(best)) + abs(np.float64(most)))
        if most == -np.inf or missing > MOST_NOISE:
            continue
        least, own = least_hash(missing), hashes[: len(block)]
        hash_block(key, first, own)
        for at in range(len(own)):
            if own[at] < least:
                continue
            score = number_of(block[at], unused) / temperature + noise_of(own[at])
            if score > best or (score == best and first + at < token):
                token, best = int(first + at), score
    return token


@compiled(error_model="numpy")
def temper(line: Bits, temperature: np.float32, scores: Numbers) -> None:
    """Write scores over a temperature."""
    unused = unused_bits(line)
    for place in range(len(line)):
        scores[place] = number_of(line[place], unused) / temperature


@compiled
def follow(
    scores: Bits, tokens: Ints, parents: Ints, sizes: Ints, places: Ints, settings: Numbers, paths: Ints
) -> None:
    """Do what `accept` does in every row's tree, with draws at the nodes of the path alone.

    Trees, sizes and paths are as for `kernels.trees.walk`, with `NO_TOKEN` where a drawn score is not finite; `scores`
    is (batch, at least nodes, vocabulary). `places` and `settings` (batch, 3) are as in `Draws`.
    """
    greatest = np.empty((scores.shape[2] + BLOCK - 1) // BLOCK, np.int32)
    hashes, orders, own = np.empty(BLOCK, np.uint64), np.empty(scores.shape[2], np.int32), np.empty(0, np.float32)
    for row in range(len(sizes)):
        node = length = 0
        temperature, left_out, min_p = settings[row, 0], settings[row, 1], settings[row, 2]
        masks = places[row, 2] > 0 or left_out > np.float32(0) or min_p > np.float32(0)
        if masks and len(own) == 0:
            own = np.empty(scores.shape[2], np.float32)
        while node != NONE:
            seed, place = places[row, 0], places[row, 1] + length
            if masks:
                temper(scores[row, node], temperature, own)
                line = own.view(np.uint32)
                mask_line(line, own, places[row, 2], left_out, min_p, orders)
                token = drawn_from(line, seed, place, np.float32(1), greatest, hashes)
            else:
                token = drawn_from(scores[row, node], seed, place, temperature, greatest, hashes)
            if abs(order_of(scores[row, node, token], unused_bits(scores))) >= INFINITY:
                token = NO_TOKEN
            paths[row, 0, length + 1], paths[row, 1, length] = node, token
            length += 1
            child = NONE
            for other in range(node + 1, sizes[row]):
                if parents[row, other] == node and tokens[row, other] == token:
                    child = other
            node = child
        paths[row, 0, 0] = length
