"""Floats as int32 orders that compare as they do, and the greatest of some, the first of equal ones first.

Zero has no sign, NaN is less than all numbers, and the least int32 means absent. A warp finds the greatest whole number
by one instruction; for a float and its place it needs many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .jitted import on_device

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there


@on_device()
def order_of(
    numbers: tl.tensor, is_there: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the orders of float32 numbers that are there, of the same shape."""
    bits = numbers.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    order = tl.where(numbers == numbers, tl.where(bits < 0, -size, size), -0x7FFFFFFF)
    return tl.where(is_there, order, -0x80000000)


@on_device()
def number_of(
    order: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the float32 numbers with such orders."""
    return tl.where(order < 0, -order | -0x80000000, order).to(tl.float32, bitcast=True)


@on_device()
def best_first(
    orders: tl.tensor, places: tl.tensor, wanted: tl.tensor,
    padded: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Return the greatest orders and their places, (padded,) each, the greatest first, of equal ones the first place.

    At least `wanted` of the orders (any,) are there; `places` (any,) int32 are distinct, and the greatest int32 past
    these.
    """
    rank = tl.arange(0, padded)
    tops, chosen = tl.full((padded,), -0x80000000, tl.int32), tl.full((padded,), 0x7FFFFFFF, tl.int32)
    for found in range(0, wanted):
        top = tl.max(orders, 0)
        place = tl.min(tl.where(orders == top, places, 0x7FFFFFFF), 0)
        orders = tl.where(places == place, -0x80000000, orders)
        tops, chosen = tl.where(rank == found, top, tops), tl.where(rank == found, place, chosen)
    return tops, chosen


@on_device()
def reached_by(
    orders: tl.tensor, count: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the greatest order that at least `count` of the orders (any,) reach, bit by bit."""
    least = tl.where(tl.sum((orders >= 0).to(tl.int32), 0) >= count, 0, -0x80000000)
    for bit in range(0, 31):
        higher = least + (0x40000000 >> bit)
        least = tl.where(tl.sum((orders >= higher).to(tl.int32), 0) >= count, higher, least)
    return least
