"""What the nodes of trees see, by their parents, in one launch, where torch takes some twenty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

FEW_NODES = 16  # of a tree: no code is made for fewer
WORD = 64  # nodes per word of `bits`


def is_supported(device: torch.device) -> bool:
    """Return whether the kernel runs on a device."""
    return runs_triton(device)


def bits_of_parents(parents: Tensor, deepest: int) -> Tensor:
    """Return what nodes see of each other, (batch, n, words), as in `TreeMask`, at most `deepest` edges below the root.

    `parents` is (batch, n) int64 whose rows may lie apart; the root's is -1.
    """
    batch, nodes = parents.shape
    words = -(-nodes // WORD)
    assert parents.stride(1) == 1, "rows that lie together"
    bits = parents.new_empty((batch, nodes, words))
    _see[batch,](
        parents, parents.stride(0), bits, nodes, deepest, words,
        padded=max(power_of_two(nodes), FEW_NODES), num_warps=1, **chained(parents.device),
    )  # fmt: skip
    return bits


@on_device("stride", "nodes", "deepest", unaligned=("parents",))
def _see(
    parents: tl.tensor, stride: tl.tensor, bits: tl.tensor, nodes: tl.tensor, deepest: tl.tensor, words: tl.tensor,
    padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, node = tl.program_id(0).to(tl.int64), tl.arange(0, padded)
    is_node = node < nodes
    for word in range(0, words):
        at, seen = node.to(tl.int64), node.to(tl.int64) * 0
        for _ in range(0, deepest + 1):
            seen |= tl.where((at >> 6) == word, (at * 0 + 1) << (at & 63), 0)
            at = tl.maximum(tl.load(parents + row * stride + at, mask=is_node, other=0), 0)
        tl.store(bits + (row * nodes + node) * words + word, seen, mask=is_node)
