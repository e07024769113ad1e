"""What loops do with the tiles of AMX, a processor's matrix unit, beside registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .emitted import REGISTER_BYTES, Registers, Value

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
