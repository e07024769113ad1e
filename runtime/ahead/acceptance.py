"""Which drafts stay, told on the device: `runtime.walk` in tensors of fixed shape.

Children of a node are different tokens, and a node stays where all nodes above it do: so one node of a depth stays, or
none. The host walks the same tree again once it has read it; both find the same path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KeyValueCache
from ..growth.layout import tree_bits
from ..models.kernels import tree_sight
from ..models.kernels.accepted import follow, is_supported
from .state import BatchState


def end_round(
    trees: tuple[Tensor, Tensor],
    best: Tensor,
    starts: Tensor,
    *,
    state: BatchState,
    cache: KeyValueCache,
    reach: int,
    sees: Tensor | None,
    may_branch: bool,
) -> Tensor:
    """Keep the keys of what is accepted, and let the state go on behind it; part of the captured work.

    Args:
        trees: tokens and parents, see `accepted_nodes`.
        best: (batch, n), the target's token behind each node.
        starts: (batch,), tokens in the target's cache before the round.
        state: has room for `reach` + 1 tokens of each row at least.
        cache: the target's.
        reach: at least the depth of any node; below n.
        sees: see `ancestors_of`; None where `sight_of` says nothing.
        may_branch: whether accepted nodes may lie apart; those of a chain lie where they belong.

    Returns:
        (batch,), tokens in the target's cache behind the round.
    """
    tokens, parents = trees
    if is_supported(best.device):
        ends, moves = follow(
            trees, best, starts,
            state=state.numbers, is_live=state.is_live, reach=reach, rows=cache.capacity,
        )  # fmt: skip
        if may_branch:
            cache.copy_rows(*moves)
        return ends
    assert sees is not None, "what a device without kernels is told"
    is_accepted = accepted_nodes(tokens, parents, sees, best)
    nodes = path_of(is_accepted, sees.sum(dim=2) - 1, reach)  # as deep as there are nodes above
    counts, drawn = is_accepted.sum(dim=1), best.gather(1, nodes)
    if may_branch:
        cache.keep_paths(starts, nodes)
    ends = starts + counts
    state.advance(starts, counts, F.pad(drawn, (0, state.fresh.shape[1] - drawn.shape[1])))
    return ends


def sight_of(parents: Tensor, deepest: int) -> tuple[Tensor | None, Tensor]:
    """Return what nodes see, (batch, n, n) where `end_round` asks for that, and the same as a `TreeMask` has it.

    Args:
        parents: (batch, n); the root's is -1.
        deepest: at least the edges between the root and any node.
    """
    if tree_sight.is_supported(parents.device):
        return None, tree_sight.bits_of_parents(parents, deepest)
    sees = ancestors_of(parents, deepest)
    return sees, tree_bits(sees)


def ancestors_of(parents: Tensor, deepest: int) -> Tensor:
    """Return (batch, n, n): True where a node sees itself or an ancestor, as `layout.ancestors` does on the host.

    Args:
        parents: (batch, n); the root's is -1.
        deepest: at least the edges between the root and any node.
    """
    above = parents.clamp(min=0)  # after k turns the node 2^k edges up; the root stays where it is
    places = torch.arange(parents.shape[1], device=parents.device)
    sees = (places.unsqueeze(1) == places).expand(len(parents), -1, -1)
    for _ in range(deepest.bit_length()):
        sees = sees | sees.gather(1, above.unsqueeze(2).expand_as(sees))
        above = above.gather(1, above)
    return sees


def accepted_nodes(tokens: Tensor, parents: Tensor, sees: Tensor, best: Tensor) -> Tensor:
    """Return (batch, n): whether a node and all above it are what the target says itself; the root always is.

    Args:
        tokens: (batch, n), drafted; -1 for the root and for padding, which is never accepted.
        parents: (batch, n), the root's is -1.
        sees: (batch, n, n), see `ancestors_of`.
        best: (batch, n), the target's token behind each node.

    Source: the match rule of tree verification, Miao et al. 2023, arXiv:2305.09781.
    """
    is_said = (tokens == best.gather(1, parents.clamp(min=0))) | (parents < 0)
    return ~(sees & ~is_said.unsqueeze(1)).any(dim=2)


def path_of(is_accepted: Tensor, depths: Tensor, deepest: int) -> Tensor:
    """Return (batch, deepest + 1): the accepted node of every depth; behind the last one, each place itself.

    Args:
        is_accepted: (batch, n), one node of a depth at most.
        depths: (batch, n).
        deepest: at least the depth of any accepted node; below n.
    """
    nodes = torch.arange(depths.shape[1], device=depths.device).expand_as(depths)
    places = torch.arange(deepest + 2, device=depths.device).expand(len(depths), -1)
    targets = depths.masked_fill(~is_accepted, deepest + 1)  # one column more, for what is not accepted
    return places.scatter(1, targets, nodes)[:, : deepest + 1]
