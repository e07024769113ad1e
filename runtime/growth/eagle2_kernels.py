"""The tree of EAGLE-2 and EAGLE-3 in captured work, by a few launches of Triton kernels per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..models.forward import ForwardInput, TreeMask
from ..models.kernels import children
from ..models.kernels.tree_growth import MOST_CANDIDATES, Frontier, Layer, Recorded, extend, finish
from .draft import children_by_kernels

if TYPE_CHECKING:
    from ...planner.strategies.eagle2 import Eagle2Policy


def is_supported(policy: Eagle2Policy, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels run on a device, for logits of that kind and trees of that size."""
    candidates = policy.top_k + policy.depth * policy.top_k**2
    return candidates <= MOST_CANDIDATES and children.is_supported(device, dtype, policy.top_k)


def grow_eagle2_by_kernels(
    policy: Eagle2Policy, read: ForwardInput, logits: Tensor, feed: Callable[[ForwardInput], Tensor], seen: int
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the numbers and widths of the draft that `eagle2.grow` grows from such scores.

    `read` is the forward that read what was committed, with `take` and a tree; `logits` (batch, 1, vocabulary) its
    result, or the scores that are drawn from. `feed` runs a forward and returns (batch, width, vocabulary) of its
    layer; `seen` cache positions are in sight.
    """
    assert read.tree is not None and read.take is not None
    widths = _widths(policy, logits.shape[2])
    recorded = Recorded.room(len(logits), min(policy.top_k, logits.shape[2]) * sum(widths), logits.device)
    layer, written = _layer(policy, logits, None), 0
    for width in widths[1:]:
        frontier = extend(layer, recorded, read.tree.starts, read.take, width=width, written=written)
        written += width
        layer = _layer(policy, feed(_step(frontier, seen)), layer, frontier)
    return finish(layer, recorded, min(policy.verify_tokens - 1, layer.end)), widths


def _widths(policy: Eagle2Policy, vocabulary: int) -> tuple[int, ...]:
    """Return how many nodes every forward is fed: few where a vocabulary is small."""
    widths = [1]
    for _ in range(policy.depth):
        widths.append(min(policy.top_k, widths[-1] * min(policy.top_k, vocabulary)))
    return tuple(widths)


def _layer(policy: Eagle2Policy, logits: Tensor, before: Layer | None, above: Frontier | None = None) -> Layer:
    """Return the children of a frontier from the logits (batch, width, vocabulary) behind it and the layer before."""
    below = children_by_kernels(logits, policy.top_k)
    return Layer(
        tokens=below.tokens.flatten(1),
        log_probs=below.log_probs.flatten(1),
        children=below.tokens.shape[2],
        above=above,
        start=0 if before is None else before.end,
        depth=1 if before is None else before.depth + 1,
    )


def _step(frontier: Frontier, seen: int) -> ForwardInput:
    return ForwardInput(
        tokens=frontier.tokens,
        positions=frontier.positions,
        columns=frontier.columns,
        bias=None,
        seen=seen,
        tree=TreeMask(starts=frontier.starts, bits=frontier.bits),
    )
