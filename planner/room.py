"""How many draft nodes a round feeds to a drafter: the room its cache needs behind the text."""

from __future__ import annotations

from .policy import (
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
    StackPolicy,
    StaticPolicy,
    SuffixPolicy,
    SuffixTreePolicy,
    TalonPolicy,
    TreePolicy,
)
from .stack_policy import stack_room


def most_drafted(policy: TreePolicy, batch: int | None = None) -> int:
    """Return the most nodes per sequence that a drafter is fed in one round: its widths but the root's, added up.

    Trees that are verified may be smaller: EAGLE-2 and OPT-Tree draft more than they keep. And a layer is as wide as
    the widest sequence needs, so TALON's sequences together may draft more than one alone. A stack's drafters need
    room in which the rows of a batch wait for each other; see `stack_room`.

    Args:
        policy: what is drafted.
        batch: sequences; None for any number.
    """
    match policy:
        case PlainPolicy() | LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            return 0
        case HybridPolicy():
            return most_drafted(policy.model, batch)
        case LossyPolicy():
            return most_drafted(policy.draft, batch)
        case StackPolicy():
            return stack_room(policy, batch)
        case ChainPolicy() | ConfidentChainPolicy():
            return policy.length - 1
        case StaticPolicy():
            return len(set(policy.tree.parents[1:])) - 1
        case Eagle2Policy():
            return policy.depth * policy.top_k
        case CastPolicy():
            return (policy.max_depth - 1) * policy.max_width
        case OptTreePolicy():
            return sum(min(policy.nodes, policy.children**depth) for depth in range(1, policy.max_depth))
        case TalonPolicy():
            return _most_drafted_by_talon(policy, batch)


def _most_drafted_by_talon(policy: TalonPolicy, batch: int | None) -> int:
    """Return the smaller of two bounds: what every sequence may draft, and what the widest may in each layer.

    The layer that fills a tree is not expanded, so a tree of N expands N - 2 nodes at most, and its layer d + 1 at
    most what the root, top_k nodes and d - 1 layers of one node each leave of them.
    """
    alone = policy.nodes - 2
    layers = sum(max(alone - policy.top_k - depth, 0) for depth in range(policy.draft_forwards - 2))
    widest = min(policy.top_k, alone) + layers if policy.draft_forwards > 1 else 0
    return widest if batch is None else min(widest, batch * alone)
