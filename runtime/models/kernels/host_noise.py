"""The noise of places in texts on a CPU, in one pass: torch takes some twenty over numbers of 64 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import ZERO, compiled
from .few_rows import Numbers, signed
from .hashes import BELOW_ONE, GOLDEN, MULTIPLIER_1, MULTIPLIER_2, POSITION_STEP
from .threads import MOST_ALONE

Hashes = NDArray[np.uint64]

UNSIGNED_GOLDEN, UNSIGNED_STEP = np.uint64(GOLDEN % 2**64), np.uint64(POSITION_STEP % 2**64)
UNSIGNED_1, UNSIGNED_2 = np.uint64(MULTIPLIER_1 % 2**64), np.uint64(MULTIPLIER_2 % 2**64)
HALF_STEP = 2.0**-53
MANTISSA, EXPONENT_OF_ONE, ONE = np.int64(2**52 - 1), np.int64(1023), np.int64(0x3FF << 52)
ROOT = 1.4142135623730951
LOG_2, REST_OF_LOG_2 = 0.693147180369123816490, 1.90821492927058770002e-10  # the first has zeros behind
ROWS_BLOCK = 4096  # tokens that a thread draws for together
prange = range  # compiled, it is numba's, which splits a loop among threads


@compiled(inline="always")
def mixed(z: np.uint64) -> np.uint64:
    """Return a number mixed by splitmix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * UNSIGNED_1
    z = (z ^ (z >> np.uint64(27))) * UNSIGNED_2
    return z ^ (z >> np.uint64(31))


@compiled(inline="always")
def key_of(seed: int, place: int) -> np.uint64:
    """Return the key that hashes all tokens at one place of a text."""
    return mixed(mixed(np.uint64(seed) + UNSIGNED_GOLDEN) + np.uint64(place) * UNSIGNED_STEP)


@compiled(inline="always")
def hash_of(key: np.uint64, token: int) -> np.uint64:
    """Return 53 random bits."""
    return mixed(key + np.uint64(token + 1) * UNSIGNED_GOLDEN) >> np.uint64(11)


@compiled(inline="always")
def log_of(number: float) -> float:
    """Return the natural logarithm of a normal number above 0.

    Source: log m = 2 artanh((m - 1) / (m + 1)), with m within a factor of the root of 2 of 1.
    """
    whole = np.float64(number).view(np.int64)
    exponent = (whole >> np.int64(52)) - EXPONENT_OF_ONE
    mantissa = np.int64((whole & MANTISSA) | ONE).view(np.float64)
    is_large = mantissa > ROOT
    mantissa = mantissa * 0.5 if is_large else mantissa
    doublings = np.float64(exponent + np.int64(1)) if is_large else np.float64(exponent)
    share = (mantissa - 1.0) / (mantissa + 1.0)
    square = share * share
    series = 1.0 / 17.0 + square * (1.0 / 19.0)
    series = 1.0 / 15.0 + square * series
    series = 1.0 / 13.0 + square * series
    series = 1.0 / 11.0 + square * series
    series = 1.0 / 9.0 + square * series
    series = 1.0 / 7.0 + square * series
    series = 1.0 / 5.0 + square * series
    series = 1.0 / 3.0 + square * series
    return doublings * LOG_2 + (2.0 * share + (2.0 * share * square * series + doublings * REST_OF_LOG_2))


@compiled(inline="always")
def noise_of(bits: np.uint64) -> np.float32:
    """Return the Gumbel noise of 53 random bits."""
    unit = (np.float64(np.int64(bits)) + 0.5) * HALF_STEP
    unit = np.float64(BELOW_ONE) if unit > BELOW_ONE else unit
    return np.float32(-log_of(-log_of(unit)))


@compiled(error_model="numpy")
def draw_block(key: np.uint64, first: int, block: Numbers) -> None:
    """Write the noise of tokens from `first` on."""
    for place in range(len(block)):
        block[place] = noise_of(hash_of(key, first + place))


@compiled(parallel=True)
def shared_noise(seeds: Ints, places: Ints, noise: Numbers) -> None:
    """Do what `draw_noise` does, by several threads."""
    blocks = (noise.shape[1] + ROWS_BLOCK - 1) // ROWS_BLOCK
    for part in prange(len(seeds) * blocks):
        row, first = signed(part) // blocks, signed(part) % blocks * ROWS_BLOCK
        draw_block(key_of(seeds[row], places[row]), first, noise[row, first : first + ROWS_BLOCK])


@compiled
def draw_noise(seeds: Ints, places: Ints, noise: Numbers, is_shared: bool) -> None:
    """Write the noise of all tokens, (rows, vocabulary), at places (rows,) of texts with seeds (rows,)."""
    if is_shared and noise.size > MOST_ALONE:
        shared_noise(seeds, places, noise)
    else:
        for row in range(len(seeds)):
            draw_block(key_of(seeds[row], places[row]), ZERO, noise[row])
