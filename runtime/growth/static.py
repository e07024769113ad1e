"""Growing a static tree on a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...planner.records.draft import Ints
from ...planner.records.tree import TokenTree
from ...planner.strategies.static import StaticPolicy, levels_of, require_children
from ..transfer import sent
from .draft import DeviceChildren, DeviceDraft, DeviceScorer, rooted


def grow(policy: StaticPolicy, scorer: DeviceScorer) -> DeviceDraft:
    """Return the policy's tree for every sequence, nodes in the tree's own order; see `planner.strategies.static`.

    PlanError if the tree has children of ranks beyond the drafter's vocabulary.
    """
    shape = device_shape(policy.tree, scorer.device)
    below = scorer.root(shape.levels[0].children)
    batch = len(below.tokens)
    tokens = [_picked(below, shape.levels[0])]
    for level in shape.levels[1:]:
        below = scorer.expand(level.slots.expand(batch, -1), level.ranks.expand(batch, -1), level.children)
        tokens.append(_picked(below, level))
    drafted = torch.cat(tokens, dim=1).index_select(1, shape.order)
    return rooted(
        drafted,
        shape.parents.expand_as(drafted),
        shape.depths.expand_as(drafted),
        torch.full_like(drafted[:, 0], policy.tree.size),
        tuple(len(level.slots) for level in shape.levels),
    )


def memory(policy: StaticPolicy, device: torch.device) -> DeviceShape:
    """Return the device memory that the policy's trees grow by."""
    return device_shape(policy.tree, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLevel:
    """One forward: its nodes are children `ranks` of the previous level's `slots`; `picks` of its answers are nodes."""

    slots: Tensor
    ranks: Tensor
    picks: Tensor  # slot * children + rank
    children: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShape:
    """A tree's drafted nodes: what the levels pick, brought into the tree's own `order`."""

    levels: tuple[DeviceLevel, ...]
    order: Tensor
    parents: Tensor
    depths: Tensor


@lru_cache(maxsize=256)
def device_shape(tree: TokenTree, device: torch.device) -> DeviceShape:
    """Return a tree on a device; cached, it is grown every round."""
    levels = levels_of(tree)
    picked = np.concatenate([level.picks[2] for level in levels])
    return DeviceShape(
        levels=tuple(
            DeviceLevel(
                slots=_on(device, level.expanded_slots),
                ranks=_on(device, level.expanded_ranks),
                picks=_on(device, level.picks[0] * level.children + level.picks[1]),
                children=level.children,
            )
            for level in levels
        ),
        order=_on(device, np.argsort(picked)),
        parents=_on(device, tree.parents[1:]),
        depths=_on(device, tree.depths[1:]),
    )


def _on(device: torch.device, numbers: tuple[int, ...] | Ints) -> Tensor:
    return sent(np.asarray(numbers, dtype=np.int64), device)


def _picked(below: DeviceChildren, level: DeviceLevel) -> Tensor:
    require_children(level.children, below.tokens.shape[2])
    return below.tokens.flatten(1).index_select(1, level.picks)
