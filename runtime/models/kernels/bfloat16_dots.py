"""Products of bfloat16 numbers by the processor's instruction, and what attention needs beside them.

VDPBF16PS multiplies 32 pairs of bfloat16 numbers and adds them, two by two, to 16 float32 numbers: one instruction for
four on widened numbers. AMD's processors have it from Zen 4 on, Intel's from Cooper Lake on.

Weights and keys lie in panels of one or two registers' lanes, pair by pair, read from front to back. Sums lie side by
side: none crosses a register, and a row's do not depend on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product as every
from typing import Any

from .bfloat16_tiles import HAS_TILES, may_use_tiles
from .emitted import (
    HALF_BYTES,
    HALF_REGISTER_BYTES,
    LANES,
    NUMBER_BYTES,
    PAIR_BYTES,
    REGISTER_BYTES,
    Emitted,
    Registers,
    Value,
)

MOST_ROWS = 8  # of x that one call takes: as many sums as there are registers for, and some to read with
REGISTERS = 2  # of sums for each row of x
WIDTH = LANES * REGISTERS  # rows of a weight in a panel
UNROLLED = 2  # pairs of numbers that a turn of the loop takes
STEP = 2 * UNROLLED  # numbers; a row's length is a multiple
MOST_LINES = 6  # that one call mixes values for
MIXED = 2 * WIDTH  # numbers of a value that are mixed together
LEAST_LLVM = 16  # whose instruction takes bfloat16 numbers; before it took whole ones
INSTRUCTION, MATRIX_UNIT = "+avx512bf16", "+amx-bf16"


@lru_cache
def has_dots() -> bool:
    """Return whether numba may use the instruction here, and also the matrix unit where there is one."""
    from llvmlite.binding import llvm_version_info  # heavy: loads LLVM
    from numba.core.registry import cpu_target

    target: Any = cpu_target  # has no types
    features = target.target_context.codegen().magic_tuple()[2].split(",")
    is_known = llvm_version_info[0] >= LEAST_LLVM and INSTRUCTION in features
    has_unit = MATRIX_UNIT in features
    return is_known and has_unit == HAS_TILES and (not has_unit or may_use_tiles())


def _sums(
    write: Registers, rows: int, registers: int, x: Value, x_stride: Value, panel: Value, length: Value
) -> list[list[Value]]:
    """Emit x W^T for one panel; return the registers of every row's sums."""

    def body(place: Value, sums: list[Value]) -> list[Value]:
        for step in range(UNROLLED):
            pair = write.behind(write.whole(step), 1, place)
            start = write.behind(panel, registers * REGISTER_BYTES, pair)
            weights = [write.pairs_at(write.behind(start, REGISTER_BYTES, number)) for number in range(registers)]
            first = write.behind(x, PAIR_BYTES, pair)
            pairs = [write.repeated_pair(write.behind(first, x_stride, row)) for row in range(rows)]
            terms = zip(sums, every(pairs, weights), strict=True)
            sums = [write.dot(one, own, weight) for one, (own, weight) in terms]
        return sums

    flat = write.loop(write.half_of(length), UNROLLED, [write.all_of(0.0)] * (rows * registers), body)
    return [flat[row * registers : (row + 1) * registers] for row in range(rows)]


def _product(write: Registers, rows: int, given: Sequence[Value]) -> None:
    """Emit what writes x W^T + bias + residual, rounded once, for one panel of a weight and `rows` of x.

    `given` are addresses, strides in bytes, and numbers: x, its stride; the panel (length / 2, WIDTH, 2); the length, a
    multiple of STEP; WIDTH numbers of bias; WIDTH a row of residual, its stride, and of out, its stride.
    """
    x, x_stride, panel, length, bias, residual, residual_stride, out, stride = given
    for row, sums in enumerate(_sums(write, rows, REGISTERS, x, x_stride, panel, length)):
        write.store_added(sums, (bias, write.behind(residual, residual_stride, row)), write.behind(out, stride, row))


def _scores(write: Registers, rows: int, given: Sequence[Value]) -> None:
    """Emit x W^T for a panel (length / 2, LANES, 2), as (rows, LANES) float32; `given` begins as for `_product`."""
    x, x_stride, panel, length, out = given
    for row, (sums,) in enumerate(_sums(write, rows, 1, x, x_stride, panel, length)):
        write.store(sums, write.behind(out, REGISTER_BYTES, row))


def _weights(write: Registers, _: int, given: Sequence[Value]) -> None:
    """Emit the softmax of scores in place: a lane's weights sum to 1, and are NaN where a score is.

    Sums are in float64, so that hidden columns between others change no rounding. `given` are the address of (columns,
    LANES) float32 numbers, and columns, above 0.
    """
    scores, columns = given

    def compare(column: Value, greatest: list[Value]) -> list[Value]:
        own = write.numbers_at(write.behind(scores, REGISTER_BYTES, column))
        return [write.greater(own, greatest[0])]

    (greatest,) = write.loop(columns, 1, [write.all_of(-math.inf)], compare)

    def raised(column: Value, totals: list[Value]) -> list[Value]:
        address = write.behind(scores, REGISTER_BYTES, column)
        weight = write.power_of_e(write.less(write.numbers_at(address), greatest))
        write.store(weight, address)
        return [write.added_wide(totals[0], weight)]

    (total,) = write.loop(columns, 1, [write.wide_zero()], raised)
    share = write.share(total)

    def shared(column: Value, _: list[Value]) -> list[Value]:
        address = write.behind(scores, REGISTER_BYTES, column)
        write.store(write.times(write.numbers_at(address), share), address)
        return []

    write.loop(columns, 1, [], shared)


def _mixed(write: Registers, lines: int, given: Sequence[Value]) -> None:
    """Emit weighted sums of values, rounded once; a column of weight 0 changes nothing, and may hold NaN.

    `given` are addresses, strides in bytes, and numbers: weights (columns, LANES) in float32, `lines` of a column
    count; values, their stride; columns, above 0; size, a multiple of LANES; out, `size` numbers a line, its stride.
    """
    weights, values, value_stride, columns, size, out, stride = given

    def part(registers: int, offset: Value) -> None:
        start = write.behind(values, HALF_BYTES, offset)

        def body(column: Value, sums: list[Value]) -> list[Value]:
            own, value = write.behind(weights, REGISTER_BYTES, column), write.behind(start, value_stride, column)
            parts = [write.widened(write.behind(value, HALF_REGISTER_BYTES, number)) for number in range(registers)]
            repeated = [write.repeated_number(write.behind(own, NUMBER_BYTES, line)) for line in range(lines)]
            terms = zip(sums, every(repeated, parts), strict=True)
            return [write.added_where(weight, value, one) for one, (weight, value) in terms]

        for place, sums in enumerate(write.loop(columns, 1, [write.all_of(0.0)] * (lines * registers), body)):
            target = write.behind(write.behind(out, stride, place // registers), HALF_BYTES, offset)
            write.store_rounded(sums, write.behind(target, HALF_REGISTER_BYTES, place % registers))

    whole = write.rounded_down(size, MIXED)
    write.repeat(write.whole(0), whole, MIXED, lambda offset: part(MIXED // LANES, offset))
    write.repeat(whole, size, LANES, lambda offset: part(1, offset))


write_product: Emitted[int, int, int, int, int, int, int, int, int, int] = Emitted(
    "write_product", MOST_ROWS, 9, _product
)
write_scores: Emitted[int, int, int, int, int, int] = Emitted("write_scores", MOST_ROWS, 5, _scores)
write_weights: Emitted[int, int, int] = Emitted("write_weights", 1, 2, _weights)
write_mixed: Emitted[int, int, int, int, int, int, int, int] = Emitted("write_mixed", MOST_LINES, 7, _mixed)
