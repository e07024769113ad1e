"""Loops over AVX-512 registers, emitted by hand for numba, which has no names for them."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....planner.kernels.compiled import Arguments, Kernel
from .host_rows import LEAST_EXPONENT

if TYPE_CHECKING:
    from llvmlite import ir

LANES = 16  # numbers in float32 that a register holds, or pairs of numbers in bfloat16
REGISTER_BYTES, HALF_REGISTER_BYTES, NUMBER_BYTES, PAIR_BYTES, HALF_BYTES, HALF_BITS = 64, 32, 4, 4, 2, 16
MANTISSA_BITS = 23
ROUNDS = 1.5 * 2**MANTISSA_BITS  # added to a number, it leaves no room behind the point

Value = Any  # of LLVM's code; llvmlite has no types
Emit = Callable[[Any, int, Sequence[Value]], None]  # Any: the kind of `Registers` that is named beside it


class Emitted(Kernel[Arguments, None]):
    """A kernel for other kernels alone, with a count and whole numbers or addresses; each count has its loop."""

    def __init__(self, name: str, most: int, arguments: int, emit: Emit, writer: type[Registers] | None = None) -> None:
        """Name what counts up to `most` and takes so many arguments after the count; `writer` emits it."""
        self._name, self._most, self._arguments, self._emit = name, most, arguments, emit
        self._writer = writer or Registers
        self._machine_code = None

    @cached_property
    def key(self) -> str:
        """What it may be made of, hashed: all files beside this one."""
        digest = hashlib.sha256(repr((self._name, self._most, self._arguments)).encode())
        for source in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(source.read_bytes())
        return digest.hexdigest()

    def _made(self) -> Any:  # Any: numba's intrinsic is no function
        if self._machine_code is None:
            self._machine_code = self._intrinsic()
        return self._machine_code

    def _intrinsic(self) -> Any:
        from numba import types  # heavy: loads LLVM
        from numba.extending import intrinsic

        given = types.void(*[types.int64] * (1 + self._arguments)), self._generate

        def typed(*_: Any) -> Any:
            return given

        names = ["typing", *(f"argument{place}" for place in range(1 + self._arguments))]
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # numba counts its arguments
        typed.__name__ = self._name
        return intrinsic(typed)

    def _generate(self, context: Any, builder: Any, _: Any, values: Sequence[Value]) -> Value:
        registers = self._writer(builder)
        leave = builder.append_basic_block(f"{self._name}.leave")
        chosen = builder.switch(values[0], leave)
        for count in range(1, self._most + 1):
            block = builder.append_basic_block(f"{self._name}.{count}")
            chosen.add_case(registers.whole(count), block)
            builder.position_at_end(block)
            self._emit(registers, count, values[1:])
            builder.branch(leave)
        builder.position_at_end(leave)
        return context.get_dummy_value()


class Registers:
    """LLVM code of loops over registers; addresses and strides are in bytes."""

    def __init__(self, builder: Any) -> None:
        """Continue the code of a builder."""
        from llvmlite import ir  # heavy: loads LLVM

        self._ir, self._builder = ir, builder
        self._place, self._word, self._half = ir.IntType(64), ir.IntType(32), ir.IntType(HALF_BITS)
        self._numbers, self._words = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(self._word, LANES)
        self._wide = ir.VectorType(ir.DoubleType(), LANES)
        self._pairs, self._rounded = (ir.VectorType(_bfloat16(), count) for count in (2 * LANES, LANES))

    def whole(self, number: int) -> Value:
        """Return a whole number."""
        return self._place(number)

    def loop(
        self, count: Value, step: int, starts: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """Emit a loop over 0, step, ... below count, a multiple of the step above 0; return the values after it."""
        builder = self._builder
        before, turn, leave = builder.basic_block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(turn)
        builder.position_at_end(turn)
        place, values = builder.phi(self._place), [builder.phi(start.type) for start in starts]
        left = body(place, list(values))
        after, end = builder.add(place, self.whole(step)), builder.basic_block  # the body may hold a loop itself
        for phi, start, value in zip((place, *values), (self.whole(0), *starts), (after, *left), strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", after, count), turn, leave)
        builder.position_at_end(leave)
        return left

    def repeat(self, first: Value, last: Value, step: int, body: Callable[[Value], None]) -> None:
        """Emit a loop over first, first + step, ... below last, perhaps none."""
        builder = self._builder
        before, check = builder.basic_block, builder.append_basic_block()
        turn, leave = builder.append_basic_block(), builder.append_basic_block()
        builder.branch(check)
        builder.position_at_end(check)
        place = builder.phi(self._place)
        place.add_incoming(first, before)
        builder.cbranch(builder.icmp_signed("<", place, last), turn, leave)
        builder.position_at_end(turn)
        body(place)
        place.add_incoming(builder.add(place, self.whole(step)), builder.basic_block)
        builder.branch(check)
        builder.position_at_end(leave)

    def rounded_down(self, count: Value, step: int) -> Value:
        """Return the greatest multiple of a power of two up to a whole number."""
        return self._builder.and_(count, self.whole(-step))

    def behind(self, start: Value, stride: Value | int, count: Value | int) -> Value:
        """Return the address `count` strides after another."""
        stride, count = (self.whole(one) if isinstance(one, int) else one for one in (stride, count))
        return self._builder.add(start, self._builder.mul(stride, count))

    def half_of(self, count: Value) -> Value:
        """Return half of a whole number."""
        return self._builder.lshr(count, self.whole(1))

    def pairs_at(self, address: Value) -> Value:
        """Return a register of bfloat16 numbers."""
        return self._builder.load(self._pointer(address, self._pairs), align=2)

    def repeated_pair(self, address: Value) -> Value:
        """Return a register with the pair of bfloat16 numbers at an address in every lane."""
        word = self._builder.load(self._pointer(address, self._word), align=2)
        return self._builder.bitcast(self._repeated(word, self._words), self._pairs)

    def repeated_number(self, address: Value) -> Value:
        """Return a register with the float32 number at an address in every lane."""
        number = self._builder.load(self._pointer(address, self._ir.FloatType()), align=4)
        return self._repeated(number, self._numbers)

    def widened(self, address: Value) -> Value:
        """Return a register of float32 numbers from bfloat16 at an address."""
        builder, halves = self._builder, self._ir.VectorType(self._half, LANES)
        narrow = builder.zext(builder.load(self._pointer(address, halves), align=2), self._words)
        return builder.bitcast(builder.shl(narrow, self._ir.Constant(self._words, [HALF_BITS] * LANES)), self._numbers)

    def dot(self, sums: Value, x: Value, weights: Value) -> Value:
        """Return sums (LANES,) plus the products of pairs, two to a lane."""
        kind = self._ir.FunctionType(self._numbers, [self._numbers, self._pairs, self._pairs])
        return self._builder.call(self._function(kind, "llvm.x86.avx512bf16.dpbf16ps.512"), [sums, x, weights])

    def added(self, one: Value, other: Value) -> Value:
        """Return sums."""
        return self._builder.fadd(one, other)

    def less(self, one: Value, other: Value) -> Value:
        """Return differences."""
        return self._builder.fsub(one, other)

    def times(self, one: Value, other: Value) -> Value:
        """Return products."""
        return self._builder.fmul(one, other)

    def greater(self, one: Value, other: Value) -> Value:
        """Return the greater ones; those of the other where one is NaN."""
        return self._builder.select(self._builder.fcmp_ordered(">", one, other), one, other)

    def share(self, total: Value) -> Value:
        """Return 1 / total in float32, of sums in float64."""
        one = self._ir.Constant(self._wide, [1.0] * LANES)
        return self._builder.fptrunc(self._builder.fdiv(one, total), self._numbers)

    def power_of_e(self, exponent: Value) -> Value:
        """Return e to powers of at most 0, to the last bits of float32; 0 of -inf, and about 1e-38 below -87.

        Source: as `host_rows.py:power_of_e`.
        """
        builder, least = self._builder, self.all_of(LEAST_EXPONENT)
        bounded = builder.select(builder.fcmp_ordered("<", exponent, least), least, exponent)
        shifted = self._fused(
            bounded, self.all_of(1.44269504), self.all_of(ROUNDS)
        )  # its last bits are whole doublings
        doublings = builder.fsub(shifted, self.all_of(ROUNDS))
        left = self._fused(doublings, self.all_of(-0.693359375), bounded)
        left = self._fused(doublings, self.all_of(2.12194440e-4), left)
        series = self.all_of(1.9875691e-4)
        for term in (1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666667e-1, 0.5):
            series = self._fused(series, left, self.all_of(term))
        series = self._fused(builder.fmul(series, left), left, builder.fadd(left, self.all_of(1.0)))
        shift, one = (
            self._ir.Constant(self._words, [number] * LANES) for number in (MANTISSA_BITS, 127 << MANTISSA_BITS)
        )
        bits = builder.add(builder.shl(builder.bitcast(shifted, self._words), shift), one)
        power = builder.fmul(series, builder.bitcast(bits, self._numbers))
        return builder.select(builder.fcmp_ordered("==", exponent, self.all_of(-math.inf)), self.all_of(0.0), power)

    def all_of(self, number: float) -> Value:
        """Return a register with a number in every lane."""
        nearest = struct.unpack("f", struct.pack("f", number))[0]  # what LLVM reads is to be a float32
        return self._ir.Constant(self._numbers, [nearest] * LANES)

    def wide_zero(self) -> Value:
        """Return zeros in float64."""
        return self._ir.Constant(self._wide, [0.0] * LANES)

    def added_wide(self, sums: Value, numbers: Value) -> Value:
        """Return float64 sums plus float32 numbers."""
        return self._builder.fadd(sums, self._builder.fpext(numbers, self._wide))

    def added_where(self, weight: Value, x: Value, sums: Value) -> Value:
        """Return sums plus weight * x, rounded once, where the weight is not zero; elsewhere unchanged."""
        builder, counts = self._builder, self._builder.fcmp_unordered("!=", weight, self.all_of(0.0))
        return builder.select(counts, self._fused(weight, x, sums), sums)

    def numbers_at(self, address: Value) -> Value:
        """Return a register of float32 numbers."""
        return self._builder.load(self._pointer(address, self._numbers), align=4)

    def store(self, numbers: Value, address: Value) -> None:
        """Write float32 numbers."""
        self._builder.store(numbers, self._pointer(address, self._numbers), align=4)

    def store_rounded(self, numbers: Value, address: Value) -> None:
        """Write numbers in bfloat16."""
        kind = self._ir.FunctionType(self._rounded, [self._numbers])
        rounded = self._builder.call(self._function(kind, "llvm.x86.avx512bf16.cvtneps2bf16.512"), [numbers])
        self._builder.store(rounded, self._pointer(address, self._rounded), align=2)

    def store_added(self, sums: Sequence[Value], added: Sequence[Value], address: Value) -> None:
        """Write float32 registers side by side in bfloat16, rounded once, after the numbers at `added` are added."""
        for place, value in enumerate(sums):
            for source in added:
                value = self.added(value, self.widened(self.behind(source, HALF_REGISTER_BYTES, place)))
            self.store_rounded(value, self.behind(address, HALF_REGISTER_BYTES, place))

    def _fused(self, one: Value, other: Value, added: Value) -> Value:
        """Return one * other + added, rounded once."""
        kind = self._ir.FunctionType(self._numbers, [self._numbers] * 3)
        return self._builder.call(self._function(kind, "llvm.fma.v16f32"), [one, other, added])

    def _pointer(self, address: Value, kind: Value) -> Value:
        return self._builder.inttoptr(address, kind.as_pointer())

    def _repeated(self, one: Value, kind: Value) -> Value:
        nothing = self._ir.Constant(kind, self._ir.Undefined)
        first = self._builder.insert_element(nothing, one, self._word(0))
        return self._builder.shuffle_vector(first, nothing, self._ir.Constant(self._words, [0] * LANES))

    def _function(self, kind: Value, name: str) -> Value:
        from numba.core import cgutils  # heavy: loads LLVM

        tools: Any = cgutils  # have no types
        return tools.get_or_insert_function(self._builder.module, kind, name)


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
