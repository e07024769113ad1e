"""How deep, how wide and how large the trees of a policy can become, and the tree itself where it never differs."""

from __future__ import annotations

from collections import Counter
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
    TextPolicy,
    TreePolicy,
)
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
    if isinstance(policy, StaticPolicy):
        return _static(policy.tree)
    if isinstance(policy, LossyPolicy | ResumedPolicy):
        return extent_of(policy.draft)
    if isinstance(policy, HybridPolicy):
        own = extent_of(policy.model)
        return Extent(depth=max(own.depth, policy.text.length), width=own.width, tokens=policy.max_verify_tokens)
    depth, width = _depth_and_width(policy)
    return Extent(depth=depth, width=width, tokens=policy.max_verify_tokens)


def fixed_tree(policy: TreePolicy) -> TokenTree | None:
    """Return the tree of a policy that drafts the same one in every round; None where trees differ."""
    if isinstance(policy, ResumedPolicy):
        return fixed_tree(policy.draft)
    if isinstance(policy, ChainPolicy):
        return TokenTree(parents=tuple(range(-1, policy.length)), ranks=(0,) * (policy.length + 1))
    return policy.tree if isinstance(policy, StaticPolicy) else None


def _static(tree: TokenTree) -> Extent:
    depths = tree.depths
    inner = Counter(depths[node] for node in set(tree.parents[1:]))
    return Extent(depth=max(depths), width=max(inner.values()), tokens=tree.size)


def _depth_and_width(
    policy: PlainPolicy
    | TextPolicy
    | StackPolicy
    | ChainPolicy
    | ConfidentChainPolicy
    | Eagle2Policy
    | TalonPolicy
    | OptTreePolicy
    | CastPolicy,
) -> tuple[int, int]:
    match policy:
        case PlainPolicy():
            return 0, 0
        case ChainPolicy() | ConfidentChainPolicy() | LookupPolicy() | SuffixPolicy():
            return policy.length, 1
        case SuffixTreePolicy():
            return policy.nodes - 1, 1
        case CachebackPolicy():
            return min(policy.max_depth, policy.nodes - 1), 1
        case StackPolicy():
            return policy.max_chain, 1 + sum(policy.lengths[1:])
        case Eagle2Policy():
            return policy.depth + 1, policy.top_k if policy.depth else 1
        case TalonPolicy():
            return policy.draft_forwards, max(policy.nodes - 1 - policy.top_k, policy.top_k)
        case OptTreePolicy():
            return policy.max_depth, policy.nodes
        case CastPolicy():
            return policy.max_depth, policy.max_width
