"""The likeliest next tokens of every row of logits, in two launches: torch sorts, and reads a row in few programs.

The first launch reads all logits once and writes the greatest of every part of a row, and of every group in a part. The
k greatest numbers lie in the k parts, and there in the k groups, with the greatest maxima: the second launch reads
these alone, a few hundred numbers of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton
from .order import best_first, number_of, order_of

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

KINDS = (torch.bfloat16, torch.float16, torch.float32)
PART, WARPS = 1024, 2  # numbers that a program reads
GROUP = 32
GROUPS = PART // GROUP  # of a part
MOST_CHILDREN = 16  # that are found one behind the other
FEW = 8  # children: code is compiled for one, for so many and for the most, not for every number


def is_supported(device: torch.device, dtype: torch.dtype, count: int) -> bool:
    """Return whether the kernels run on a device, for logits of that kind and so many children."""
    return dtype in KINDS and 1 <= count <= MOST_CHILDREN and runs_triton(device)


def best_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return rows' likeliest tokens, int64, and log-probabilities, float32, (rows, count), of (rows, vocabulary).

    The likeliest come first, equal ones in the vocabulary's order. A row with a NaN has NaN log-probabilities and any
    tokens. The count is at most `MOST_CHILDREN`, and cut to the vocabulary.
    """
    (rows, width), parts = logits.shape, -(-logits.shape[1] // PART)
    count = min(count, width)
    assert logits.stride(1) == 1 and count <= MOST_CHILDREN, "rows that lie together, and few children"
    tops, sums = logits.new_empty((2, rows, parts), dtype=torch.float32)
    groups = logits.new_empty((rows, parts, GROUPS), dtype=torch.float32)
    _read_part[parts, rows](
        logits, tops, sums, groups, width, logits.stride(0), parts,
        part=PART, group=GROUP, num_warps=WARPS, **chained(logits.device),
    )  # fmt: skip
    tokens = logits.new_empty((rows, count), dtype=torch.int64)
    log_probs = logits.new_empty((rows, count), dtype=torch.float32)
    _choose[rows,](
        logits, tops, sums, groups, tokens, log_probs, width, logits.stride(0), parts,
        count, padded=1 if count == 1 else max(power_of_two(count), FEW), parts_padded=power_of_two(parts),
        groups_each=GROUPS, group=GROUP, num_warps=1, **chained(logits.device),
    )  # fmt: skip
    return tokens, log_probs


@on_device("parts", "count", unaligned=("sums",))
def _read_part(
    logits: tl.tensor, tops: tl.tensor, sums: tl.tensor, groups: tl.tensor, width: tl.tensor, stride: tl.tensor,
    parts: tl.tensor,
    part: tl.constexpr, group: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write the greatest number of a part of one row and of its groups, and the part's sum of e^(number - greatest)."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * part + tl.arange(0, part)
    numbers = tl.load(logits + row * stride + column, mask=column < width, other=float("-inf")).to(tl.float32)
    best = tl.max(tl.reshape(numbers, (part // group, group)), 1)
    top = tl.max(best, 0)
    level = tl.where(top == float("-inf"), 0.0, top)
    at = row * parts + tl.program_id(0)
    tl.store(tops + at, top)
    tl.store(sums + at, tl.sum(tl.exp(numbers - level), 0))
    tl.store(groups + at * (part // group) + tl.arange(0, part // group), best)


@on_device()
def _narrowed(
    numbers: tl.tensor, chosen: tl.tensor, above: tl.tensor, below: tl.tensor, wanted: tl.tensor,
    each: tl.constexpr, padded: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Return the orders and places of the best numbers in the chosen holders, as `best_first` does.

    `numbers` holds `below` numbers, `each` in a holder (the last one less). `chosen` (padded,) are places of holders;
    those past `above`, the number of holders, hold nothing.
    """
    place = tl.minimum(chosen, above)[:, None] * each + tl.arange(0, each)[None, :]
    is_there = place < below
    number = tl.load(numbers + place, mask=is_there, other=float("-inf")).to(tl.float32)
    order, place = tl.reshape(order_of(number, is_there), (padded * each,)), tl.reshape(place, (padded * each,))
    order, place = best_first(order, place, wanted, padded)
    return order, place


@on_device("parts", "count", unaligned=("sums",))
def _choose(
    logits: tl.tensor, tops: tl.tensor, sums: tl.tensor, groups: tl.tensor, tokens: tl.tensor, log_probs: tl.tensor,
    width: tl.tensor, stride: tl.tensor, parts: tl.tensor, count: tl.tensor,
    padded: tl.constexpr, parts_padded: tl.constexpr, groups_each: tl.constexpr,
    group: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, parts_padded)
    top = tl.load(tops + row * parts + part, mask=part < parts, other=float("-inf"))
    share = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    greatest = tl.max(top, 0)
    total = tl.sum(share * tl.exp(top - greatest), 0)
    every = parts * groups_each
    _, best = best_first(order_of(top, part < parts), part, tl.minimum(parts, count), padded)
    _, best = _narrowed(groups + row * every, best, parts, every, tl.minimum(every, count), groups_each, padded)
    order, best = _narrowed(logits + row * stride, best, every, width, count, group, padded)
    rank = tl.arange(0, padded)
    at, is_child = row * count + rank, rank < count
    tl.store(tokens + at, tl.minimum(best, width - 1).to(tl.int64), mask=is_child)  # any is one, of what is no number
    tl.store(log_probs + at, number_of(order) - greatest - tl.log(total), mask=is_child)
