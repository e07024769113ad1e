"""Which drafts stay, told on the device: `runtime.walk` for greedy rounds, in tensors of fixed shape.

Children of a node are different tokens, and a node stays where all nodes above it do: so one node of a depth stays, or
none. The host walks the same tree again once it has read it; both find the same path.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
