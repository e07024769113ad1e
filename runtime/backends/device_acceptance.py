"""Acceptance on the device: `runtime.sampling.acceptance` in tensors of fixed shape.

Siblings are different tokens, and a node is accepted only where all nodes above it are: so at most one node of a depth
is accepted. The host walks the same tree again once it has read it; both find the same path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..growth.layout import tree_bits
from ..models.kernels import tree_sight
from ..models.kernels.accepted import follow, is_supported
from ..models.kv_cache import KeyValueCache
from .device_state import BatchState


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
    """Move the keys of accepted nodes together, advance the state, and return where rows end, (batch,); is captured.

    `best` is (batch, n), the target's token behind each node; `starts` (batch,), tokens in its cache before the round.
    `sees` may be None where `sight_of` gives None. `reach`, below n, is at least the depth of any node; the state has
    room for one token more. `may_branch`: accepted nodes may lie apart.
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
    """Return what nodes see as (batch, n, n), None where kernels do not need it, and as bits; see `ancestors_of`."""
    if tree_sight.is_supported(parents.device):
        return None, tree_sight.bits_of_parents(parents, deepest)
    sees = ancestors_of(parents, deepest)
    return sees, tree_bits(sees)


def ancestors_of(parents: Tensor, deepest: int) -> Tensor:
    """Return (batch, n, n): True where a node sees itself or an ancestor, no more than `deepest` edges above."""
    above = parents.clamp(min=0)  # after k turns the node 2^k edges up; the root stays where it is
    places = torch.arange(parents.shape[1], device=parents.device)
    sees = (places.unsqueeze(1) == places).expand(len(parents), -1, -1)
    for _ in range(deepest.bit_length()):
        sees = sees | sees.gather(1, above.unsqueeze(2).expand_as(sees))
        above = above.gather(1, above)
    return sees


def accepted_nodes(tokens: Tensor, parents: Tensor, sees: Tensor, best: Tensor) -> Tensor:
    """Return (batch, n): whether a node and all above it are the target's own tokens; true for the root.

    `tokens` are -1 for the root and for padding, which is never accepted; `best` is the target's behind each node.

    Source: the match rule of tree verification, Miao et al. 2023, arXiv:2305.09781.
    """
    is_said = (tokens == best.gather(1, parents.clamp(min=0))) | (parents < 0)
    return ~(sees & ~is_said.unsqueeze(1)).any(dim=2)


def path_of(is_accepted: Tensor, depths: Tensor, deepest: int) -> Tensor:
    """Return (batch, deepest + 1): the accepted node of every depth; behind the last, each column's own index."""
    nodes = torch.arange(depths.shape[1], device=depths.device).expand_as(depths)
    places = torch.arange(deepest + 2, device=depths.device).expand(len(depths), -1)
    targets = depths.masked_fill(~is_accepted, deepest + 1)  # one column more, for what is not accepted
    return places.scatter(1, targets, nodes)[:, : deepest + 1]
