"""The fewest best tokens that hold a probability, without a sort: one program bisects each row.

A score stays where all up to it, itself included, hold more than what is left out; the least that stays decides. Every
pass over a row tries three scores and leaves a quarter of the candidates, so some sixteen find it among all floats.
torch sorts the rows, which takes a GPU longer than a forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, runs_triton
from .order import order_of

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

TILE, WARPS = 2048, 8  # scores of a row that are looked at together


def is_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernel runs on a device, for scores of that kind."""
    return dtype == torch.float32 and runs_triton(device)


def nucleus_of(scores: Tensor, left_out: Tensor) -> Tensor:
    """Return scores (rows, n, vocabulary) float32, -inf but for the fewest best tokens that hold the probability.

    Of equal ones the last stay, and so does NaN. `left_out` (rows, 1, 1) float32 is 1 less the probability, below 1.

    Source: Holtzman et al. 2019, arXiv:1904.09751, Sec. 3.1.
    """
    rows, nodes, width = scores.shape
    scores, kept = scores.contiguous(), torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    _keep_best[rows * nodes,](
        scores, left_out.contiguous(), kept, width, nodes,
        tile=TILE, num_warps=WARPS, **chained(scores.device),
    )  # fmt: skip
    return kept


@on_device("nodes", unaligned=("left_out",))
def _keep_best(
    scores: tl.tensor, left_out: tl.tensor, kept: tl.tensor, width: tl.tensor, nodes: tl.tensor,
    tile: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    own, out = scores + row * width, kept + row * width
    share = tl.load(left_out + row // nodes)
    tops, orders = tl.full((tile,), float("-inf"), tl.float32), tl.full((tile,), -0x80000000, tl.int32)
    for start in range(0, width, tile):
        is_there = start + lane < width
        number = tl.load(own + start + lane, mask=is_there, other=float("-inf"))
        tops = tl.maximum(tops, tl.where(number == number, number, float("-inf")))
        orders = tl.maximum(orders, order_of(number, is_there))
    top, high = tl.max(tops, 0), tl.max(orders, 0).to(tl.int64)
    low = high * 0 - 0x80000000
    high = tl.where(share > 0.0, high, low)  # of a row that leaves nothing out all are more
    mass, _, _ = _masses_up_to(own, width, top, high, high, high, tile)
    mass *= share
    while high - low > 1:  # what is up to `low` is left out, what is up to `high` is more, or all there is
        step = high - low
        first, second, third = low + step // 4, low + step // 2, low + 3 * step // 4
        below, middle, above = _masses_up_to(own, width, top, first, second, third, tile)
        if below > mass:
            high = first
        elif middle > mass:
            low, high = first, second
        elif above > mass:
            low, high = second, third
        else:
            low = third
    less, _, _ = _masses_up_to(own, width, top, low, low, low, tile)
    least, alike, masses = high.to(tl.int32), tl.zeros((tile,), tl.int32), tl.zeros((tile,), tl.float32)
    for start in range(0, width, tile):
        is_there = start + lane < width
        number = tl.load(own + start + lane, mask=is_there, other=float("-inf"))
        is_equal = order_of(number, is_there) == least
        alike += is_equal.to(tl.int32)
        masses = tl.where(is_equal, tl.exp(number - top), masses)
    equal = tl.sum(alike, 0)
    lost = tl.floor((mass - less) / tl.max(masses, 0))  # of the equal ones, the first
    lost = tl.minimum(tl.maximum(lost, 0.0), (equal - 1).to(tl.float32)).to(tl.int32)
    before = equal * 0
    for start in range(0, width, tile):
        is_there = start + lane < width
        number = tl.load(own + start + lane, mask=is_there, other=float("-inf"))
        order = order_of(number, is_there)
        is_equal = (order == least).to(tl.int32)
        place = before + tl.cumsum(is_equal, 0)  # among the equal ones, from 1 on
        before += tl.sum(is_equal, 0)
        is_kept = (order > least) | ((is_equal > 0) & (place > lost)) | (number != number)
        tl.store(out + start + lane, tl.where(is_kept, number, float("-inf")), mask=is_there)


@on_device()
def _masses_up_to(
    own: tl.tensor, width: tl.tensor, top: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor,
    tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return the masses of the scores up to each of three orders, int64; the greatest score's mass is 1."""
    lane, first, second, third = tl.arange(0, tile), first.to(tl.int32), second.to(tl.int32), third.to(tl.int32)
    firsts, seconds, thirds = (
        tl.zeros((tile,), tl.float32),
        tl.zeros((tile,), tl.float32),
        tl.zeros((tile,), tl.float32),
    )
    for start in range(0, width, tile):
        is_there = start + lane < width
        number = tl.load(own + start + lane, mask=is_there, other=float("-inf"))
        order, mass = order_of(number, is_there), tl.exp(number - top)
        firsts += tl.where(order <= first, mass, 0.0)
        seconds += tl.where(order <= second, mass, 0.0)
        thirds += tl.where(order <= third, mass, 0.0)
    return tl.sum(firsts, 0), tl.sum(seconds, 0), tl.sum(thirds, 0)
