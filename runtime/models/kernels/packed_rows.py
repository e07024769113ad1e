"""x W^T of a weight in few bits on a CPU: x becomes bytes, group by group, and the result is bfloat16."""

from __future__ import annotations

from typing import NamedTuple

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


class RoundedRows(NamedTuple):
    """Rows as bytes times factors."""

    numbers: Bytes  # (rows, in)
    factors: Numbers  # (rows, groups)
    starts: Words  # (rows, groups), of their sums, as `round_rows` writes them


class PackedPanels(NamedTuple):
    """A part of a weight: addresses, and the bytes from one panel to the next."""

    case: int  # the place in `PACKINGS` times MOST_ROWS
    weight: int
    weight_stride: int
    scales: int
    scales_stride: int


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
    """Write x (rows, in) as bytes times factors (rows, groups), and the starts (rows, groups) of their sums.

    `packing` is the weight's place in `PACKINGS`; `zero` is its whole number for 0, not used for groups with least
    numbers. Starts are whole numbers that cancel `zero`, or the float32 bits of the factor of least numbers.
    """
    if is_shared and len(x) > 1 and x.size > MOST_ALONE:
        shared_round_rows(x, packing, zero, rounded, factors, starts)
    else:
        for row in range(len(x)):
            round_row(x, packing, zero, rounded, factors, starts, row)


@compiled
def panel_product(
    x: RoundedRows, panels: PackedPanels, bias: Halves, residual: Halves, out: Halves, number: int
) -> None:
    """Write one panel's columns of out, all rows: the panel stays in a near cache meanwhile."""
    rounded, factors, starts = x
    case, weight, weight_stride, scales, scales_stride = panels
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
def product_alone(x: RoundedRows, panels: PackedPanels, bias: Halves, residual: Halves, out: Halves) -> None:
    """Do what `packed_product` does for rounded rows by one thread."""
    for number in range(out.shape[1] // LANES):
        panel_product(x, panels, bias, residual, out, number)


@compiled(parallel=True)
def product_shared(x: RoundedRows, panels: PackedPanels, bias: Halves, residual: Halves, out: Halves) -> None:
    """Do what `packed_product` does for rounded rows by several threads."""
    for number in prange(out.shape[1] // LANES):
        panel_product(x, panels, bias, residual, out, signed(number))


@compiled
def part_product(x: Halves, part: Ints, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Do what `packed_product` does for one part, as `PART` describes it."""
    packing, group, zero, _, weight, weight_stride, scales, scales_stride = part
    rounded, factors = np.empty(x.shape, np.int8), np.empty((len(x), x.shape[1] // group), np.float32)
    starts = np.empty(factors.shape, np.int32)
    round_rows(x, packing, zero, rounded, factors, starts, is_shared)
    rows = RoundedRows(rounded, factors, starts)
    panels = PackedPanels(packing * MOST_ROWS, weight, weight_stride, scales, scales_stride)
    if is_shared:
        product_shared(rows, panels, bias, residual, out)
    else:
        product_alone(rows, panels, bias, residual, out)


@compiled
def packed_product(x: Halves, parts: int, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Do what `bfloat16_rows.product` does; `parts` is the address of `PART` numbers for each part of the weight."""
    part, first, place = np.empty(PART, np.int64), 0, parts
    while first < out.shape[1]:
        copy_registers(1, place, part.ctypes.data)
        last = first + part[ROWS]
        part_product(x, part, bias[first:last], residual[:, first:last], out[:, first:last], is_shared)
        first, place = last, place + part.nbytes
