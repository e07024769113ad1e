"""Products of bfloat16 numbers by AMX, the matrix unit of Intel's processors from Sapphire Rapids on.

TDPBF16PS multiplies a tile of up to 16 rows and 32 numbers by one of 16 lanes, in the same panels as VDPBF16PS
(`bfloat16_dots.py`). A row's sums do not depend on the rows beside it. The system must first allow tiles.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, vol. 1, ch. 18; Linux, arch/x86/xstate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

from ....profiler.cpu import processor_here
from .emitted import HALF_BYTES, REGISTER_BYTES, Emitted, Value
from .tiles import TileRegisters

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
