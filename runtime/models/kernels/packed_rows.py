"""x W^T of a weight in few bits on a CPU: x becomes bytes, group by group, and what comes out is bfloat16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import compiled
from .emitted import HALF_BYTES, LANES
from .few_rows import Halves, Numbers, signed
from .packed_dots import MOST_ROWS, copy_registers, write_packed_product, write_rounded
from .threads import MOST_ALONE

NOTHING = np.zeros(LANES, np.uint16)  # a constant of the code: numba frees what is known by its address alone
PART, ROWS = 8, 3  # place among `PACKINGS`, its group, zero, rows; address of panels, bytes of one; of scales likewise
prange = range  # compiled, it is numba's, which splits a loop among threads
Bytes = NDArray[np.int8]
Words = NDArray[np.int32]


@compiled
def round_row(x: Halves, packing: int, zero: int, rounded: Bytes, factors: Numbers, starts: Words, row: int) -> None:
    """Do what `round_rows` does for one row."""
    behind = row * factors.strides[0]
    write_rounded(
        packing + 1, x.ctypes.data + row * x.strides[0], factors.shape[1], zero,
        rounded.ctypes.data + row * rounded.strides[0], factors.ctypes.data + behind, starts.ctypes.data + behind,
    )  # fmt: skip


@compiled(parallel=True)
def shared_round_rows(x: Halves, packing: int, zero: int, rounded: Bytes, factors: Numbers, starts: Words) -> None:
    """Do what `round_rows` does, by several threads."""
    for row in prange(len(x)):
        round_row(x, packing, zero, rounded, factors, starts, signed(row))


@compiled
def round_rows(
    x: Halves, packing: int, zero: int, rounded: Bytes, factors: Numbers, starts: Words, is_shared: bool
) -> None:
    """Write numbers as bytes times a factor of each group, and what sums of their products with a weight begin with.

    Args:
        x: (rows, in).
        packing: place of the weight's among `PACKINGS`.
        zero: the whole number of the weight that means none; of no use where its groups have least numbers.
        rounded: (rows, in), written.
        factors: (rows, groups), written.
        starts: as factors, written: whole sums in which `zero` counts for nothing, or, as the bits of a float32, what
            least numbers are multiplied by.
        is_shared: whether several threads share the rows.
    """
    if is_shared and len(x) > 1 and x.size > MOST_ALONE:
        shared_round_rows(x, packing, zero, rounded, factors, starts)
    else:
        for row in range(len(x)):
            round_row(x, packing, zero, rounded, factors, starts, row)


@compiled
def panel_product(
    case: int, rounded: Bytes, factors: Numbers, starts: Words, weight: int, weight_stride: int, scales: int,
    scales_stride: int, bias: Halves, residual: Halves, out: Halves, number: int,
) -> None:  # fmt: skip
    """Write the columns of out that belong to one panel, all rows: it stays in a near cache while they take turns."""
    rows, first = len(rounded), number * LANES * HALF_BYTES
    own = bias.ctypes.data + first if len(bias) else NOTHING.ctypes.data
    added, added_stride = NOTHING.ctypes.data, 0
    if len(residual):
        added, added_stride = residual.ctypes.data + first, residual.strides[0]
    x_stride, stride, factor_stride = rounded.strides[0], out.strides[0], factors.strides[0]
    turns, row = (rows + MOST_ROWS - 1) // MOST_ROWS, 0
    for turn in range(turns):
        count = rows * (turn + 1) // turns - row  # about equal ones
        write_packed_product(
            case + count, rounded.ctypes.data + row * x_stride, x_stride, factors.ctypes.data + row * factor_stride,
            starts.ctypes.data + row * factor_stride, factor_stride, weight + number * weight_stride,
            scales + number * scales_stride, factors.shape[1], own, added + row * added_stride, added_stride,
            out.ctypes.data + first + row * stride, stride,
        )  # fmt: skip
        row += count


@compiled
def product_alone(
    case: int, rounded: Bytes, factors: Numbers, starts: Words, weight: int, weight_stride: int, scales: int,
    scales_stride: int, bias: Halves, residual: Halves, out: Halves,
) -> None:  # fmt: skip
    """Do what `packed_product` does for rounded rows by one thread."""
    for number in range(out.shape[1] // LANES):
        panel_product(
            case, rounded, factors, starts, weight, weight_stride, scales, scales_stride, bias, residual, out, number
        )


@compiled(parallel=True)
def product_shared(
    case: int, rounded: Bytes, factors: Numbers, starts: Words, weight: int, weight_stride: int, scales: int,
    scales_stride: int, bias: Halves, residual: Halves, out: Halves,
) -> None:  # fmt: skip
    """Do what `packed_product` does for rounded rows by several threads."""
    for number in prange(out.shape[1] // LANES):
        panel_product(
            case, rounded, factors, starts, weight, weight_stride, scales, scales_stride, bias, residual, out,
            signed(number),
        )  # fmt: skip


@compiled
def part_product(x: Halves, part: Ints, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Do what `packed_product` does for one part, which is told by `PART`."""
    packing, group, zero, _, weight, weight_stride, scales, scales_stride = part
    rounded, factors = np.empty(x.shape, np.int8), np.empty((len(x), x.shape[1] // group), np.float32)
    starts, case = np.empty(factors.shape, np.int32), packing * MOST_ROWS
    round_rows(x, packing, zero, rounded, factors, starts, is_shared)
    if is_shared:
        product_shared(
            case, rounded, factors, starts, weight, weight_stride, scales, scales_stride, bias, residual, out
        )
    else:
        product_alone(case, rounded, factors, starts, weight, weight_stride, scales, scales_stride, bias, residual, out)


@compiled
def packed_product(x: Halves, parts: int, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Write x W^T + bias + residual.

    Args:
        x: (rows, in).
        parts: address of what tells of the weight's parts, which stand below each other: for each of them `PART`.
        bias: (out,), or (0,) for none.
        residual: (rows, out), or (0, any) for none.
        out: (rows, out), written.
        is_shared: whether several threads share the panels.
    """
    part, first, place = np.empty(PART, np.int64), 0, parts
    while first < out.shape[1]:
        copy_registers(1, place, part.ctypes.data)
        last = first + part[ROWS]
        part_product(x, part, bias[first:last], residual[:, first:last], out[:, first:last], is_shared)
        first, place = last, place + part.nbytes
