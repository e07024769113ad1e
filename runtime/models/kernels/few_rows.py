"""x W^T in float32 for few rows and a bfloat16 W, which is read once in two bytes and widened in the register.

Reading W bounds the product of a decoding step, so each weight read serves four rows. Few rows take W's rows in memory
order, which reads fastest; from a dozen on arithmetic is the bound, and two rows of W share the numbers of x.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.compiled import compiled

Numbers = NDArray[np.float32]
Halves = NDArray[np.uint16]  # upper halves of float32 numbers, which is bfloat16

SUMS_MAY_BE_REORDERED = {"reassoc", "contract", "nsz"}  # infinities and NaN stay what they are
COLUMNS = 16  # of a tile, even
PAIRED_ROWS = 12  # from here on arithmetic is the bound
prange = range  # compiled, it is numba's, which splits a loop among threads


@compiled(inline="always")
def signed(number: int) -> int:
    """Return a prange's index as a range's; otherwise what takes both is compiled twice, with all below it."""
    return np.int64(number)  # type: ignore[return-value]  # numba knows no difference


@compiled(inline="always")
def widened(half: np.uint16) -> np.float32:
    """Return the float32 with this upper half and a lower half of zeros."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def four_by_two(x: Numbers, weight: Halves, out: Numbers, row: int, first: int, last: int) -> None:
    """Write out[row : row + 4, first:last], two columns at once; their number is even."""
    for column in range(first, last, 2):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
        for place in range(weight.shape[1]):
            a, b = widened(weight[column, place]), widened(weight[column + 1, place])
            a0 += x[row, place] * a
            a1 += x[row + 1, place] * a
            a2 += x[row + 2, place] * a
            a3 += x[row + 3, place] * a
            b0 += x[row, place] * b
            b1 += x[row + 1, place] * b
            b2 += x[row + 2, place] * b
            b3 += x[row + 3, place] * b
        out[row, column], out[row, column + 1] = a0, b0
        out[row + 1, column], out[row + 1, column + 1] = a1, b1
        out[row + 2, column], out[row + 2, column + 1] = a2, b2
        out[row + 3, column], out[row + 3, column + 1] = a3, b3


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def four_by_one(x: Numbers, weight: Halves, out: Numbers, row: int, first: int, last: int) -> None:
    """Write out[row : row + 4, first:last]."""
    for column in range(first, last):
        a0 = a1 = a2 = a3 = np.float32(0)
        for place in range(weight.shape[1]):
            a = widened(weight[column, place])
            a0 += x[row, place] * a
            a1 += x[row + 1, place] * a
            a2 += x[row + 2, place] * a
            a3 += x[row + 3, place] * a
        out[row, column], out[row + 1, column], out[row + 2, column], out[row + 3, column] = a0, a1, a2, a3


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def three_by_one(x: Numbers, weight: Halves, out: Numbers, row: int, first: int, last: int) -> None:
    """Write out[row : row + 3, first:last]."""
    for column in range(first, last):
        a0 = a1 = a2 = np.float32(0)
        for place in range(weight.shape[1]):
            a = widened(weight[column, place])
            a0 += x[row, place] * a
            a1 += x[row + 1, place] * a
            a2 += x[row + 2, place] * a
        out[row, column], out[row + 1, column], out[row + 2, column] = a0, a1, a2


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def two_by_one(x: Numbers, weight: Halves, out: Numbers, row: int, first: int, last: int) -> None:
    """Write out[row : row + 2, first:last]."""
    for column in range(first, last):
        a0 = a1 = np.float32(0)
        for place in range(weight.shape[1]):
            a = widened(weight[column, place])
            a0 += x[row, place] * a
            a1 += x[row + 1, place] * a
        out[row, column], out[row + 1, column] = a0, a1


@compiled(fastmath=SUMS_MAY_BE_REORDERED)
def one_by_one(x: Numbers, weight: Halves, out: Numbers, row: int, first: int, last: int) -> None:
    """Write out[row, first:last]."""
    for column in range(first, last):
        a0 = np.float32(0)
        for place in range(weight.shape[1]):
            a0 += x[row, place] * widened(weight[column, place])
        out[row, column] = a0


@compiled
def tile(x: Numbers, weight: Halves, out: Numbers, number: int) -> None:
    """Write some columns of out, all rows: the tile's weights stay in the nearest cache meanwhile."""
    first, last, row = number * COLUMNS, min(len(weight), (number + 1) * COLUMNS), 0
    while row + 4 <= len(x):
        if len(x) >= PAIRED_ROWS:
            four_by_two(x, weight, out, row, first, last)
        else:
            four_by_one(x, weight, out, row, first, last)
        row += 4
    left = len(x) - row
    if left == 3:
        three_by_one(x, weight, out, row, first, last)
    elif left == 2:
        two_by_one(x, weight, out, row, first, last)
    elif left == 1:
        one_by_one(x, weight, out, row, first, last)


@compiled
def product(x: Numbers, weight: Halves, out: Numbers) -> None:
    """Write x W^T into out (rows, out), for x (rows, in) and a weight (out, in), out even."""
    for number in range((len(weight) + COLUMNS - 1) // COLUMNS):
        tile(x, weight, out, number)


@compiled(parallel=True)
def shared_product(x: Numbers, weight: Halves, out: Numbers) -> None:
    """Write x W^T as `product` does, by several threads."""
    for number in prange((len(weight) + COLUMNS - 1) // COLUMNS):
        tile(x, weight, out, signed(number))
