"""How deep, how wide and how large the trees of a policy can become, and the tree itself where it never differs."""

from __future__ import annotations

from dataclasses import dataclass

from ..policies import (
    CachebackPolicy,
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    HybridPolicy,
    LookupPolicy,
    LossyPolicy,
    OptTreePolicy,
    PlainPolicy,
    ResumedPolicy,
    StackPolicy,
    StaticPolicy,
    SuffixPolicy,
    SuffixTreePolicy,
    TalonPolicy,
    TreePolicy,
)
from .room import deepest
from .tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The bounds of a policy's trees.

    Attributes:
        depth: most drafted tokens on one path, so most that one round can accept.
        width: most nodes of one drafter forward; 1 where the text drafts, which runs none.
        tokens: most tokens one verify feeds per sequence, root included.
    """

    depth: int
    width: int
    tokens: int


def extent_of(policy: TreePolicy) -> Extent:
    """Return the bounds of a policy's trees; O(nodes) for a static one."""
    return Extent(depth=deepest(policy), width=_width(policy), tokens=policy.max_verify_tokens)


def fixed_tree(policy: TreePolicy) -> TokenTree | None:
    """Return the tree of a policy that drafts the same one in every round; None where trees differ."""
    if isinstance(policy, ResumedPolicy):
        return fixed_tree(policy.draft)
    if isinstance(policy, ChainPolicy):
        return TokenTree(parents=tuple(range(-1, policy.length)), ranks=(0,) * (policy.length + 1))
    return policy.tree if isinstance(policy, StaticPolicy) else None


def _width(policy: TreePolicy) -> int:
    match policy:
        case PlainPolicy():
            return 0
        case LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            return 1
        case ChainPolicy() | ConfidentChainPolicy():
            return 1
        case HybridPolicy():
            return _width(policy.model)
        case LossyPolicy() | ResumedPolicy():
            return _width(policy.draft)
        case StackPolicy():
            return 1 + sum(policy.lengths[1:])
        case StaticPolicy():
            return max(policy.tree.widths)
        case Eagle2Policy():
            return policy.top_k if policy.depth else 1
        case TalonPolicy():
            return max(policy.nodes - 1 - policy.top_k, policy.top_k)
        case OptTreePolicy():
            return policy.nodes
        case CastPolicy():
            return policy.max_width
