"""Products of bfloat16 numbers by AMX, the matrix unit of Intel's processors from Sapphire Rapids on.

TDPBF16PS multiplies a tile of up to 16 rows and 32 numbers by one of 16 lanes, in the same panels as VDPBF16PS
(`bfloat16_dots.py`). A row's sums do not depend on the rows beside it. The system must first allow tiles.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 1, ch. 18; Linux, arch/x86/xstate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ....profiler.cpu import processor_here
from .emitted import HALF_BYTES, REGISTER_BYTES, Emitted, Registers, Value

TILE_SHAPES, TILE_COLUMNS, TILE_LINES = 64, 16, 48  # bytes of what shapes tiles, and where it tells their sizes


class TileRegisters(Registers):
    """Registers and tiles; a tile has up to 16 lines of 64 bytes and is known by its place among eight."""

    def room(self, count: int) -> Value:
        """Return the address of so many bytes of this function's stack."""
        from numba.core import cgutils  # heavy: loads LLVM

        tools: Any = cgutils  # have no types
        place = tools.alloca_once(self._builder, self._ir.ArrayType(self._ir.IntType(8), count))
        place.align = REGISTER_BYTES
        return self._builder.ptrtoint(place, self._place)

    def less_whole(self, number: Value, other: int) -> Value:
        """Return the difference of whole numbers."""
        return self._builder.sub(number, self.whole(other))

    def shape_tiles(self, rows: Mapping[int, Value]) -> None:
        """Give tiles so many rows, by place, of 64 bytes each; their content is lost."""
        builder, byte = self._builder, self._ir.IntType(8)
        shapes = self.room(TILE_SHAPES)
        for place in range(0, TILE_SHAPES, REGISTER_BYTES):
            self.store(self.all_of(0.0), self.behind(shapes, 1, place))
        builder.store(byte(1), self._pointer(shapes, byte))
        for place, count in rows.items():
            wide = self._pointer(self.behind(shapes, 1, TILE_COLUMNS + 2 * place), self._half)
            builder.store(self._half(REGISTER_BYTES), wide, align=2)
            builder.store(builder.trunc(count, byte), self._pointer(self.behind(shapes, 1, TILE_LINES + place), byte))
        self._tiled("ldtilecfg", [self._pointer(shapes, byte)])

    def clear_tile(self, place: int) -> None:
        """Fill a tile with zeros."""
        self._tiled("tilezero", [self._ir.IntType(8)(place)])

    def load_tile(self, place: int, address: Value, stride: Value) -> None:
        """Load a tile from lines of 64 bytes that lie a stride apart."""
        byte = self._ir.IntType(8)
        self._tiled("tileloadd64", [byte(place), self._pointer(address, byte), stride])

    def store_tile(self, place: int, address: Value, stride: Value) -> None:
        """Write a tile's lines of 64 bytes a stride apart."""
        byte = self._ir.IntType(8)
        self._tiled("tilestored64", [byte(place), self._pointer(address, byte), stride])

    def multiply_tiles(self, sums: int, left: int, right: int) -> None:
        """Add to a tile of float32 numbers the product of two of bfloat16 pairs."""
        self._tiled("tdpbf16ps", [self._ir.IntType(8)(place) for place in (sums, left, right)])

    def release_tiles(self) -> None:
        """Free the tiles, so that the system need not save them."""
        self._tiled("tilerelease", [])

    def _tiled(self, name: str, given: list[Value]) -> None:
        kind = self._ir.FunctionType(self._ir.VoidType(), [one.type for one in given])
        self._builder.call(self._function(kind, f"llvm.x86.{name}"), given)


TILE_ROWS = 16  # of a tile
TILE_STEP = 32  # numbers of a row that one instruction takes; a row's length is a multiple
REGISTERS = 2  # tiles of sums side by side: a panel's lanes
MOST_TILES = 2  # of rows, below each other: with their sums and a panel's they are all eight
PLACES = MOST_TILES * REGISTERS + MOST_TILES + REGISTERS
PANEL_BYTES = REGISTERS * REGISTER_BYTES  # of a panel's pairs that stand at one place in their rows
HAS_TILES = "amx_bf16" in processor_here().isa  # a constant of the code
ASK_SYSTEM, ASK_FOR, TILES = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


@lru_cache
def may_use_tiles() -> bool:
    """Return whether the system lets all threads of this process use the unit's tiles; requested once."""
    try:
        return int(ctypes.CDLL(None).syscall(ASK_SYSTEM, ASK_FOR, TILES)) == 0
    except (OSError, AttributeError):  # another system, which has no such call
        return False


def _product(write: TileRegisters, tiles: int, given: Sequence[Value]) -> None:
    """Emit `bfloat16_dots.write_product` for `tiles` of rows; `given` begins with the rows, some in the last tile."""
    rows, x, x_stride, panel, length, bias, residual, residual_stride, out, stride = given
    sums = [[tile * REGISTERS + number for number in range(REGISTERS)] for tile in range(tiles)]
    left = [MOST_TILES * REGISTERS + tile for tile in range(tiles)]
    right = [MOST_TILES * (REGISTERS + 1) + number for number in range(REGISTERS)]
    last = write.less_whole(rows, (tiles - 1) * TILE_ROWS)
    counts = dict.fromkeys((*sums[-1], left[-1]), last)
    write.shape_tiles({place: counts.get(place, write.whole(TILE_ROWS)) for place in range(PLACES)})
    for place in (place for line in sums for place in line):
        write.clear_tile(place)

    def body(number: Value, _: list[Value]) -> list[Value]:
        start, weights = write.behind(x, HALF_BYTES, number), write.behind(panel, PANEL_BYTES // 2, number)
        for tile, place in enumerate(left):
            write.load_tile(place, write.behind(start, x_stride, tile * TILE_ROWS), x_stride)
        for register, place in enumerate(right):
            write.load_tile(place, write.behind(weights, REGISTER_BYTES, register), write.whole(PANEL_BYTES))
        for line, own in zip(sums, left, strict=True):
            for place, weight in zip(line, right, strict=True):
                write.multiply_tiles(place, own, weight)
        return []

    write.loop(length, TILE_STEP, [], body)
    found = write.room(MOST_TILES * TILE_ROWS * PANEL_BYTES)
    for tile, line in enumerate(sums):
        for register, place in enumerate(line):
            target = write.behind(found, PANEL_BYTES, tile * TILE_ROWS)
            write.store_tile(place, write.behind(target, REGISTER_BYTES, register), write.whole(PANEL_BYTES))
    write.release_tiles()

    def rounded(row: Value) -> None:
        own = write.behind(found, PANEL_BYTES, row)
        numbers = [write.numbers_at(write.behind(own, REGISTER_BYTES, register)) for register in range(REGISTERS)]
        write.store_added(numbers, (bias, write.behind(residual, residual_stride, row)), write.behind(out, stride, row))

    write.repeat(write.whole(0), rows, 1, rounded)


write_tiled_product: Emitted[int, int, int, int, int, int, int, int, int, int, int] = Emitted(
    "write_tiled_product", MOST_TILES, 10, _product, TileRegisters
)
