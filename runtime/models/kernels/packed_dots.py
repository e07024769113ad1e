"""Products of weights in few bits by signed bytes, four pairs to a lane in one instruction.

VPDPBUSD multiplies 64 unsigned bytes by 64 signed ones and adds them, four by four, to 16 whole numbers, unrounded.
AMD's processors have it from Zen 4 on, Intel's from Cascade Lake on.

A weight lies in panels of LANES rows, and a panel group by group: a lane holds neighbours of one row. Two numbers of
four bits share a byte. A row's sums do not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from .emitted import (
    HALF_BYTES,
    HALF_REGISTER_BYTES,
    LANES,
    NUMBER_BYTES,
    REGISTER_BYTES,
    ROUNDS,
    Emitted,
    Registers,
    Value,
)

AHEAD = 2048  # bytes between what is read and what is to come near
MOST_ROWS = 8  # of x that one call takes: two sums of each, and registers for what they share
DOTS = 4  # numbers of a lane that one instruction adds up
BYTE, NIBBLE, LOWER_NIBBLES = 8, 4, 0x0F0F0F0F
UNSIGNED, MOST_BYTE, LEAST_SIZE = 0x7FFFFFFF, 127.0, 2.0**-100  # no group is told from nothing below the last
INSTRUCTION = "+avx512vnni"


@dataclass(frozen=True, slots=True)
class Packing:
    """How the numbers of a weight are stored."""

    bits: int  # of a number, 4 or 8
    group: int  # numbers of a row that have one scale
    has_least: bool  # whether a group has a least number of its own

    @property
    def group_bytes(self) -> int:
        """Bytes of a panel's numbers in one group."""
        return self.group * LANES * self.bits // BYTE

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of such numbers, and of their least numbers."""
        return HALF_REGISTER_BYTES * (1 + self.has_least)


FOUR_BITS = Packing(4, 32, has_least=True)
EIGHT_BITS, EIGHT_BITS_FINE = Packing(8, 32, has_least=False), Packing(8, 16, has_least=False)
PACKINGS = FOUR_BITS, EIGHT_BITS, EIGHT_BITS_FINE


def can_pack(rows: int, columns: int) -> bool:
    """Return whether our kernels take a weight (rows, columns)."""
    return rows % LANES == 0 and all(columns % packing.group == 0 for packing in PACKINGS)


@lru_cache
def has_byte_dots() -> bool:
    """Return whether numba may use the instruction here."""
    from numba.core.registry import cpu_target  # heavy: loads LLVM

    target: Any = cpu_target  # has no types
    return INSTRUCTION in target.target_context.codegen().magic_tuple()[2].split(",")


class ByteRegisters(Registers):
    """Registers of floats, of whole numbers, and of bytes, four to a lane."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self._halves = self._ir.VectorType(self._ir.HalfType(), LANES)

    def all_words(self, word: int) -> Value:
        """Return a register with a whole number in every lane."""
        return self._ir.Constant(self._words, [word] * LANES)

    def words_at(self, address: Value) -> Value:
        """Return a register of whole numbers."""
        return self._builder.load(self._pointer(address, self._words), align=4)

    def repeated_word(self, address: Value) -> Value:
        """Return a register with the whole number at an address in every lane."""
        return self._repeated(self._builder.load(self._pointer(address, self._word), align=4), self._words)

    def nibbles(self, words: Value, *, is_upper: bool) -> Value:
        """Return the lower or the upper halves of bytes."""
        shifted = self._builder.lshr(words, self.all_words(NIBBLE)) if is_upper else words
        return self._builder.and_(shifted, self.all_words(LOWER_NIBBLES))

    def dot_bytes(self, sums: Value, weights: Value, x: Value) -> Value:
        """Return sums plus the products of unsigned and signed bytes, four to a lane."""
        kind = self._ir.FunctionType(self._words, [self._words] * 3)
        return self._builder.call(self._function(kind, "llvm.x86.avx512.vpdpbusd.512"), [sums, weights, x])

    def as_numbers(self, words: Value) -> Value:
        """Return whole numbers in float32."""
        return self._builder.sitofp(words, self._numbers)

    def widened_half(self, address: Value) -> Value:
        """Return a register of float32 numbers from float16 at an address."""
        return self._builder.fpext(self._builder.load(self._pointer(address, self._halves), align=2), self._numbers)

    def sizes(self, numbers: Value) -> Value:
        """Return absolute values as whole numbers of the same order; NaN is the greatest."""
        return self._builder.and_(self._builder.bitcast(numbers, self._words), self.all_words(UNSIGNED))

    def greater_word(self, one: Value, other: Value) -> Value:
        """Return the greater ones of whole numbers of at least 0."""
        return self._builder.select(self._builder.icmp_signed(">", one, other), one, other)

    def added_words(self, one: Value, other: Value) -> Value:
        """Return sums of whole numbers."""
        return self._builder.add(one, other)

    def over_lanes(self, words: Value, what: str) -> Value:
        """Return the sum ("add") of a register's whole numbers, or the greatest ("umax")."""
        kind = self._ir.FunctionType(self._word, [self._words])
        return self._builder.call(self._function(kind, f"llvm.vector.reduce.{what}.v{LANES}i32"), [words])

    def store_bytes(self, numbers: Value, factor: Value, address: Value) -> Value:
        """Write numbers times a factor as rounded bytes; return them as whole numbers."""
        builder, rounds = self._builder, self.all_of(ROUNDS)
        shifted = builder.bitcast(self._fused(numbers, factor, rounds), self._words)  # its last bits are the number's
        words = builder.sub(shifted, builder.bitcast(rounds, self._words))
        narrow = self._ir.VectorType(self._ir.IntType(BYTE), LANES)
        self._builder.store(self._builder.trunc(words, narrow), self._pointer(address, narrow), align=1)
        return words

    def byte_factors(self, most: Value) -> tuple[Value, Value]:
        """Return the factor to bytes of numbers up to `most` (see `sizes`), in every lane, and its inverse, once."""
        builder, single = self._builder, self._ir.FloatType()
        greatest, limit = builder.bitcast(most, single), self._ir.Constant(single, LEAST_SIZE)
        inverse = builder.fdiv(self._ir.Constant(single, MOST_BYTE), greatest)
        inverse = builder.select(builder.fcmp_ordered("<", greatest, limit), self._ir.Constant(single, 0.0), inverse)
        back = builder.fdiv(greatest, self._ir.Constant(single, MOST_BYTE))
        return self._repeated(inverse, self._numbers), back

    def store_one(self, one: Value, address: Value) -> None:
        """Write a float32 or a whole number."""
        self._builder.store(one, self._pointer(address, one.type), align=4)

    def less_product(self, whole: Value, other: Value) -> Value:
        """Return -whole * other; other is a whole number or a float32."""
        builder = self._builder
        if other.type == self._ir.FloatType():
            return builder.fneg(builder.fmul(builder.sitofp(whole, other.type), other))
        return builder.neg(builder.mul(whole, builder.trunc(other, self._word)))

    def expect(self, address: Value) -> None:
        """Prefetch the line of memory at an address, which may be invalid."""
        byte = self._ir.IntType(BYTE).as_pointer()
        kind = self._ir.FunctionType(self._ir.VoidType(), [byte, *[self._word] * 3])
        hints = [self._word(one) for one in (0, 3, 1)]  # to read, to be kept near, data
        self._builder.call(self._function(kind, "llvm.prefetch.p0"), [self._builder.inttoptr(address, byte), *hints])

    def added_product(self, one: Value, other: Value, sums: Value) -> Value:
        """Return sums plus products, rounded once."""
        return self._fused(one, other, sums)


def _product(write: ByteRegisters, case: int, given: Sequence[Value]) -> None:
    """Emit what writes x W^T + bias + residual, rounded once, for one panel of a weight.

    `case` is the rows of x, plus MOST_ROWS for each packing before the weight's. `given` are addresses, strides in
    bytes, and numbers: x in bytes, its stride; for every row and group the float32 factor of its bytes, and what its
    sum begins with (a whole number, or the float32 factor of least numbers), their stride; the panel; scales (groups, 1
    or 2, LANES) in float16, then least numbers; groups; LANES numbers of bias; LANES a row of residual, its stride, and
    of out, its stride.
    """
    number, rows = divmod(case - 1, MOST_ROWS)
    packing, rows = PACKINGS[number], rows + 1
    x, x_stride, factors, starts, factor_stride, panel, scales, groups, *last = given
    bias, residual, residual_stride, out, stride = last

    def body(group: Value, sums: list[Value]) -> list[Value]:
        factor, start = (write.behind(place, NUMBER_BYTES, group) for place in (factors, starts))
        begins = [write.behind(start, factor_stride, row) for row in range(rows)]
        found = [write.all_words(0) if packing.has_least else write.repeated_word(one) for one in begins]
        numbers = write.behind(x, packing.group, group)
        for place, weights in enumerate(_weights(write, packing, write.behind(panel, packing.group_bytes, group))):
            own = write.behind(numbers, DOTS, place)
            found = [
                write.dot_bytes(one, weights, write.repeated_word(write.behind(own, x_stride, row)))
                for row, one in enumerate(found)
            ]
        own = write.behind(scales, packing.scale_bytes, group)
        scale = write.widened_half(own)
        for row, words in enumerate(found):
            repeated = write.repeated_number(write.behind(factor, factor_stride, row))
            sums[row] = write.added_product(write.times(write.as_numbers(words), repeated), scale, sums[row])
        if packing.has_least:
            least = write.widened_half(write.behind(own, HALF_REGISTER_BYTES, 1))
            for row, begin in enumerate(begins):
                sums[row] = write.added_product(write.repeated_number(begin), least, sums[row])
        return sums

    for row, sums in enumerate(write.loop(groups, 1, [write.all_of(0.0)] * rows, body)):
        write.store_added([sums], (bias, write.behind(residual, residual_stride, row)), write.behind(out, stride, row))


def _weights(write: ByteRegisters, packing: Packing, group: Value) -> list[Value]:
    """Emit the load of a panel's group; return registers of bytes, each with the next neighbours."""
    count = packing.group_bytes // REGISTER_BYTES
    for place in range(count):
        write.expect(write.behind(group, 1, AHEAD + REGISTER_BYTES * place))
    stored = [write.words_at(write.behind(group, REGISTER_BYTES, place)) for place in range(count)]
    if packing.bits == BYTE:
        return stored
    return [write.nibbles(words, is_upper=is_upper) for words in stored for is_upper in (False, True)]


def _rounded(write: ByteRegisters, case: int, given: Sequence[Value]) -> None:
    """Emit what writes a row's numbers as bytes, group by group, for the packing at place `case` - 1.

    `given` are addresses and whole numbers: x in bfloat16; groups; the weight's zero, not used for groups with least
    numbers; then bytes, factors and starts for `_product`, written.
    """
    packing, (x, groups, zero, rounded, factors, starts) = PACKINGS[case - 1], given
    places = range(0, packing.group, LANES)

    def body(group: Value, _: list[Value]) -> list[Value]:
        start, end = write.behind(x, HALF_BYTES * packing.group, group), write.behind(rounded, packing.group, group)
        numbers = [write.widened(write.behind(start, HALF_BYTES, place)) for place in places]
        most = write.over_lanes(reduce(write.greater_word, map(write.sizes, numbers)), "umax")
        inverse, factor = write.byte_factors(most)
        words = [
            write.store_bytes(own, inverse, write.behind(end, 1, place))
            for own, place in zip(numbers, places, strict=True)
        ]
        total = write.over_lanes(reduce(write.added_words, words), "add")
        write.store_one(factor, write.behind(factors, NUMBER_BYTES, group))
        start = write.less_product(total, factor if packing.has_least else zero)
        write.store_one(start, write.behind(starts, NUMBER_BYTES, group))
        return []

    write.loop(groups, 1, [], body)


def _copied(write: ByteRegisters, registers: int, given: Sequence[Value]) -> None:
    """Emit the copy of so many registers; given: addresses, from and to."""
    source, target = given
    for place in range(registers):
        numbers = write.numbers_at(write.behind(source, REGISTER_BYTES, place))
        write.store(numbers, write.behind(target, REGISTER_BYTES, place))


copy_registers: Emitted[int, int, int] = Emitted("copy_registers", 1, 2, _copied, ByteRegisters)
write_rounded: Emitted[int, int, int, int, int, int, int] = Emitted(
    "write_rounded", len(PACKINGS), 6, _rounded, ByteRegisters
)
write_packed_product: Emitted[int, int, int, int, int, int, int, int, int, int, int, int, int, int] = Emitted(
    "write_packed_product", MOST_ROWS * len(PACKINGS), 13, _product, ByteRegisters
)
