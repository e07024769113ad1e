"""Which drafted nodes are accepted, and where the next round begins: one launch, where torch takes some fifty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

FEW_NODES = 16  # of a tree: no code is made for fewer


def is_supported(device: torch.device) -> bool:
    """Return whether the kernel runs on a device."""
    return runs_triton(device)


def follow(
    trees: tuple[Tensor, Tensor], best: Tensor, starts: Tensor, *, state: Tensor, is_live: Tensor, reach: int, rows: int
) -> tuple[Tensor, Tensor]:
    """Walk from each root along the target's tokens as far as the tree goes; continue after the path.

    Args:
        trees: tokens and parents, (batch, n) int64, whose rows may lie apart; -1 for the root, and as padding's token.
        best: (batch, n) int64, the target's token after each node.
        starts: (batch,) int64, tokens in the target's cache; may be the state's memory.
        state: (batch * (2 + room),) int64, written: tokens in each row's cache, how many are new, and those, then any.
        is_live: () bool; where false, the state does not change.
        reach: most nodes of a path without the root; below n and `room`.
        rows: places of a cache for each sequence.

    Returns:
        (batch,), tokens in the target's cache then; (2, batch * (reach + 1)), which places of the cache move to which
        others, so that each path lies in a row after its start.

    Source: the match rule of tree verification, Miao et al. 2023, arXiv:2305.09781.
    """
    tokens, parents = trees
    batch, nodes = tokens.shape
    room = state.numel() // batch - 2
    assert tokens.stride(1) == parents.stride(1) == 1 and best.is_contiguous(), "rows that lie together"
    assert reach < min(nodes, room), "a path that fits"
    ends, moves = torch.empty_like(starts), starts.new_empty(2, batch * (reach + 1))
    _follow[batch,](
        tokens, parents, tokens.stride(0), parents.stride(0), best, starts, state, is_live, ends, moves,
        nodes, batch, room, reach, rows,
        padded=max(power_of_two(nodes), FEW_NODES), num_warps=1, **chained(tokens.device),
    )  # fmt: skip
    return ends, moves


@on_device("token_stride", "parent_stride", "nodes", "batch", "room", "reach", "rows", unaligned=("tokens", "parents"))
def _follow(
    tokens: tl.tensor, parents: tl.tensor, token_stride: tl.tensor, parent_stride: tl.tensor, best: tl.tensor,
    starts: tl.tensor, state: tl.tensor, is_live: tl.tensor, ends: tl.tensor, moves: tl.tensor,
    nodes: tl.tensor, batch: tl.tensor, room: tl.tensor, reach: tl.tensor, rows: tl.tensor,
    padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, padded)
    is_node = place < nodes
    token = tl.load(tokens + row * token_stride + place, mask=is_node, other=-1)
    parent = tl.load(parents + row * parent_stride + place, mask=is_node, other=-1)
    says = tl.load(best + row * nodes + place, mask=is_node, other=-1)
    start, live = tl.load(starts + row), tl.load(is_live)
    first, fresh = row * rows + start, state + 2 * batch + row * room
    source = moves + row * (reach + 1)
    target = source + batch * (reach + 1)
    node = tl.max(place, 0) * 0
    count, is_open = node, node + 1
    for depth in range(reach + 1):
        drawn = tl.max(tl.where(place == node, says, -1), 0)
        tl.store(source + depth, first + tl.where(is_open > 0, node, depth))
        tl.store(target + depth, first + depth)
        tl.store(fresh + depth, drawn, mask=live)
        count += is_open
        below = tl.max(tl.where((place > 0) & (parent == node) & (token == drawn), place, -1), 0)
        is_open = tl.where(below >= 0, is_open, 0)
        node = tl.where(is_open > 0, below, node)
    tl.store(ends + row, start + count)
    tl.store(state + row, start + count, mask=live)
    tl.store(state + batch + row, count.to(tl.int64), mask=live)
