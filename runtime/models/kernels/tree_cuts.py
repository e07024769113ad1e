"""How attention to trees is cut into a GPU's programs: by shapes alone, so that a captured launch serves any text."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .jitted import power_of_two

MOST_SIZE = 256  # of a head
MOST_SPLITS = 64
LEAST_COLUMNS, MOST_COLUMNS = 16, 64  # of keys that a program takes at once
MOST_NUMBERS, MOST_WIDE_NUMBERS = 8192, 1024  # in those keys; wide ones are multiplied in registers, which are few
LEAST_LINES, MOST_LINES = 16, 64  # of queries in a program; the matrix unit takes no fewer
MOST_MIXED = 8192  # numbers in a program's sums, which are registers, too
FEW_NODES = 16  # new keys that are read at once where there are no more
WARPS, WIDE_WARPS = 4, 8  # of a program, and of one with so many numbers that a processor holds it alone
LOST_TILES = 2  # that a program could have taken while it begins and ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What each program takes, and how many there are."""

    columns: int  # keys at once
    lines: int  # queries; a line is a node and one of the heads that read the same keys
    tiles: int  # programs that share a head's lines
    nodes: int  # new keys at once
    warps: int
    splits: int  # programs that share a head's keys


def cut_of(
    *,
    count: int,  # new nodes of a row
    groups: int,  # query heads of a key-value head
    heads: int,  # key-value heads of all rows
    padded: int,  # size of a head, padded to a power of two
    dtype: torch.dtype,
    capacity: int,  # columns of the cache
    seen: int | None,  # columns that a row's nodes see at most; None: all
    processors: int,  # of the device
    splits: int | None,  # programs that share the keys of a head; None: as many as fill the device
) -> Cut:
    """Return how a launch is cut."""
    columns, lines = columns_of(padded, dtype), lines_of(count * groups, padded, dtype)
    tiles, nodes = -(-count * groups // lines), FEW_NODES if count <= FEW_NODES else columns
    warps = warps_of(lines, padded, nodes)
    if splits is None:
        most = capacity if seen is None else min(capacity, seen + columns)
        at_once = processors * (WIDE_WARPS // warps)
        splits = splits_of(heads * tiles, -(-most // columns), at_once)
    return Cut(columns=columns, lines=lines, tiles=tiles, nodes=nodes, warps=warps, splits=splits)


def columns_of(padded: int, dtype: torch.dtype) -> int:
    """Return how many keys a program takes at once, for a head's size padded to a power of two."""
    most = MOST_WIDE_NUMBERS if dtype == torch.float32 else MOST_NUMBERS
    return min(MOST_COLUMNS, max(LEAST_COLUMNS, most // padded))


def lines_of(rows: int, padded: int, dtype: torch.dtype) -> int:
    """Return how many queries of one key-value head a program takes; float32 has no matrix unit to fill."""
    most = LEAST_LINES if dtype == torch.float32 else min(MOST_LINES, MOST_MIXED // padded)
    return min(most, max(LEAST_LINES, power_of_two(rows)))


def warps_of(lines: int, padded: int, nodes: int) -> int:
    """Return how many warps hold a program's numbers in registers: sums, and two tiles of keys and values."""
    is_wide = lines == MOST_LINES or padded == MOST_SIZE or (padded > MOST_SIZE // 4 and nodes > FEW_NODES)
    return WIDE_WARPS if is_wide else WARPS


def splits_of(programs: int, tiles: int, processors: int) -> int:
    """Return how many programs share the keys of a head, so that the last of all ends first.

    `programs` counts them without sharing, `tiles` those of keys that fit the cache; `processors` programs run at once.
    """

    def cost(splits: int) -> int:  # in tiles
        return -(-programs * splits // processors) * (-(-tiles // splits) + LOST_TILES)

    return min(range(1, min(tiles, MOST_SPLITS) + 1), key=cost)
