"""Dot products of bfloat16 numbers by the processor's own instruction, which numba has no name for.

VDPBF16PS multiplies 32 pairs of bfloat16 numbers and adds them up, two by two, to 16 numbers in float32: one
instruction where widened numbers would take four. It is what AMD's processors have from Zen 4 on, and Intel's from
Cooper Lake on.

A weight lies in panels of `WIDTH` rows, pair by pair: the numbers that one instruction reads lie together, and a panel
is read from front to back. Sums stand side by side, so that nothing is added up across a register.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ....planner.kernels.compiled import Kernel

if TYPE_CHECKING:
    from llvmlite import ir

MOST_ROWS = 8  # of x that one call takes: as many sums as there are registers for, and some to read with
LANES = 16  # sums of a register
REGISTERS = 2  # of sums for each row of x
WIDTH = LANES * REGISTERS  # rows of a weight in a panel
UNROLLED = 2  # pairs of numbers that a turn of the loop takes
STEP = 2 * UNROLLED  # numbers; a row's length is a multiple
REGISTER_BYTES, PAIR_BYTES, HALF_BITS = 64, 4, 16
LEAST_LLVM = 16  # whose instruction takes bfloat16 numbers; before it took whole ones
INSTRUCTION, MATRIX_UNIT = "+avx512bf16", "+amx-bf16"


@lru_cache
def has_dots() -> bool:
    """Return whether numba may use the instruction here, and no unit for whole matrices multiplies faster."""
    from llvmlite.binding import llvm_version_info  # heavy: loads LLVM
    from numba.core.registry import cpu_target

    target: Any = cpu_target  # has no types
    features = target.target_context.codegen().magic_tuple()[2].split(",")
    return llvm_version_info[0] >= LEAST_LLVM and INSTRUCTION in features and MATRIX_UNIT not in features


class _Dots(Kernel[[int, int, int, int, int, int, int, int, int, int], None]):
    """What writes x W^T + bias + residual, rounded once, for one panel; other kernels call it, Python cannot.

    Addresses and strides are in bytes. The arguments of a call, in this order:
        rows: of x, 1 to MOST_ROWS.
        x: address of the first row, and `x_stride` bytes behind it the next.
        panel: address of (length / 2, WIDTH, 2) numbers of a weight, which begin where a register may.
        length: numbers of a row of x, a multiple of STEP.
        bias: address of WIDTH numbers.
        residual: address of the first row's WIDTH numbers, and `residual_stride` bytes behind it the next.
        out: address of the first row's WIDTH numbers, which are written, and `stride` bytes behind it the next.
    """

    def __init__(self) -> None:
        self._machine_code: Any = None  # Any: numba's intrinsic is no function
        self._options = {}

    def _made(self) -> Any:
        if self._machine_code is None:
            self._machine_code = _intrinsic()
        return self._machine_code


dots = _Dots()


@dataclass(frozen=True, slots=True)
class _Where:
    """The addresses that a call of `dots` is given, as values of its code."""

    x: Any
    x_stride: Any
    panel: Any
    length: Any
    bias: Any
    residual: Any
    residual_stride: Any
    out: Any
    stride: Any


def _intrinsic() -> Any:
    """Return `dots` as numba calls it: one loop for each number of rows."""
    from llvmlite import ir  # heavy: loads LLVM
    from numba import types
    from numba.extending import intrinsic

    signature: Any = types.void(*[types.int64] * 10)

    def emit(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        rows, *where = args
        leave = builder.append_basic_block("dots.leave")
        chosen = builder.switch(rows, leave)
        for count in range(1, MOST_ROWS + 1):
            block = builder.append_basic_block(f"dots.{count}")
            chosen.add_case(ir.Constant(ir.IntType(64), count), block)
            builder.position_at_end(block)
            _Loop(builder, count).emit(_Where(*where))
            builder.branch(leave)
        builder.position_at_end(leave)
        return context.get_dummy_value()

    def dots(
        typing: Any, rows: Any, x: Any, x_stride: Any, panel: Any, length: Any,
        bias: Any, residual: Any, residual_stride: Any, out: Any, stride: Any,
    ) -> Any:  # fmt: skip
        return signature, emit

    return intrinsic(dots)


class _Loop:
    """The loop over pairs for so many rows of x: their sums stay in registers from the first pair to the last."""

    def __init__(self, builder: Any, rows: int) -> None:
        from llvmlite import ir  # heavy: loads LLVM

        self._builder, self._rows, self._ir = builder, rows, ir
        self._place, self._word, self._half = ir.IntType(64), ir.IntType(32), ir.IntType(16)
        self._sums = ir.VectorType(ir.FloatType(), LANES)
        self._pairs, self._rounded = (ir.VectorType(_bfloat16(), count) for count in (2 * LANES, LANES))

    def emit(self, where: _Where) -> None:
        """Write the loop, and behind it what rounds and stores."""
        builder, ir = self._builder, self._ir
        before, loop = builder.basic_block, builder.append_basic_block("dots.loop")
        leave = builder.append_basic_block("dots.store")
        builder.branch(loop)
        builder.position_at_end(loop)
        pair = builder.phi(self._place)
        pair.add_incoming(self._place(0), before)
        running = [[builder.phi(self._sums) for _ in range(REGISTERS)] for _ in range(self._rows)]
        found = running
        for step in range(UNROLLED):
            found = self._added(found, where, builder.add(pair, self._place(step)))
        after = builder.add(pair, self._place(UNROLLED))
        pair.add_incoming(after, loop)
        for phis, values in zip(running, found, strict=True):
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(ir.Constant(self._sums, [0.0] * LANES), before)
                phi.add_incoming(value, loop)
        pairs = builder.lshr(where.length, self._place(1))
        builder.cbranch(builder.icmp_signed("<", after, pairs), loop, leave)
        builder.position_at_end(leave)
        for row, values in enumerate(found):
            self._store(values, where, row)

    def _added(self, running: list[list[Any]], where: _Where, pair: Any) -> list[list[Any]]:
        """Return the sums with one pair's products added."""
        builder, found = self._builder, []
        start = builder.add(where.panel, builder.mul(pair, self._place(REGISTERS * REGISTER_BYTES)))
        weights = [
            builder.load(self._at(start, number * REGISTER_BYTES, self._pairs), align=REGISTER_BYTES)
            for number in range(REGISTERS)
        ]
        own = builder.add(where.x, builder.mul(pair, self._place(PAIR_BYTES)))
        for row, sums in enumerate(running):
            both = self._repeated(builder.load(self._at(self._line(own, where.x_stride, row), 0, self._word), align=2))
            found.append([self._dot(one, both, weight) for one, weight in zip(sums, weights, strict=True)])
        return found

    def _store(self, sums: list[Any], where: _Where, row: int) -> None:
        """Store one row's sums with bias and residual."""
        builder = self._builder
        added, out = self._line(where.residual, where.residual_stride, row), self._line(where.out, where.stride, row)
        for number, value in enumerate(sums):
            offset = number * REGISTER_BYTES // 2  # rounded numbers take half the bytes
            for source in (where.bias, added):
                value = builder.fadd(value, self._widened(source, offset))
            builder.store(self._round(value), self._at(out, offset, self._rounded), align=2)

    def _line(self, start: Any, stride: Any, row: int) -> Any:
        """Return the address of a row."""
        return self._builder.add(start, self._builder.mul(stride, self._place(row)))

    def _widened(self, start: Any, offset: int) -> Any:
        """Return a register of numbers in float32 that lie in bfloat16 so many bytes behind an address."""
        builder, words = self._builder, self._ir.VectorType(self._word, LANES)
        halves = builder.load(self._at(start, offset, self._ir.VectorType(self._half, LANES)), align=2)
        shifts = self._ir.Constant(words, [HALF_BITS] * LANES)
        return builder.bitcast(builder.shl(builder.zext(halves, words), shifts), self._sums)

    def _at(self, start: Any, offset: int, kind: Any) -> Any:
        """Return a pointer to what lies so many bytes behind an address."""
        return self._builder.inttoptr(self._builder.add(start, self._place(offset)), kind.as_pointer())

    def _repeated(self, word: Any) -> Any:
        """Return a register that holds the same pair of numbers in every lane."""
        ir, words = self._ir, self._ir.VectorType(self._word, LANES)
        nothing = ir.Constant(words, ir.Undefined)
        one = self._builder.insert_element(nothing, word, self._word(0))
        every = self._builder.shuffle_vector(one, nothing, ir.Constant(words, [0] * LANES))
        return self._builder.bitcast(every, self._pairs)

    def _dot(self, sums: Any, x: Any, weights: Any) -> Any:
        kind = self._ir.FunctionType(self._sums, [self._sums, self._pairs, self._pairs])
        return self._builder.call(self._instruction(kind, "dpbf16ps"), [sums, x, weights])

    def _round(self, sums: Any) -> Any:
        kind = self._ir.FunctionType(self._rounded, [self._sums])
        return self._builder.call(self._instruction(kind, "cvtneps2bf16"), [sums])

    def _instruction(self, kind: Any, name: str) -> Any:
        from numba.core import cgutils  # heavy: loads LLVM

        tools: Any = cgutils  # have no types
        return tools.get_or_insert_function(self._builder.module, kind, f"llvm.x86.avx512bf16.{name}.512")


def _bfloat16() -> ir.Type:
    """Return LLVM's type of bfloat16 numbers, which llvmlite lacks."""
    from llvmlite import ir  # heavy: loads LLVM

    class BFloat16(ir.Type):  # type: ignore[misc]  # has no types
        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return str(self) == str(other)

        def __hash__(self) -> int:
            return hash("bfloat")

    return BFloat16()
