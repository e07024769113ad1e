"""Rows of a cache that move: one compiled call moves a path of a few nodes in every layer."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ...planner.kernels.arrays import Ints
from ...planner.kernels.compiled import compiled


@compiled
def move_rows(parts: NDArray[Any], moves: Ints) -> None:
    """Copy rows over others, one after the other, in each of `parts` (parts, rows, bytes) uint8.

    `moves` is (2, any): rows that are read, and rows that are written.
    """
    for part in range(len(parts)):
        for move in range(moves.shape[1]):
            read, written = parts[part, moves[0, move]], parts[part, moves[1, move]]
            for place in range(len(read)):
                written[place] = read[place]
