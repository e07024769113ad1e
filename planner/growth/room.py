"""Draft nodes and committed tokens that a round feeds to a drafter, in all and in one forward: the room they need."""

from __future__ import annotations

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
    drafting,
)
from ..policies.stack import stack_room
from .on_gpu import most_widths

MASK_STEP = 16  # tokens per sequence: a mask's memory is for a multiple, so that one token more does not move it
READ_TOGETHER = 32  # most tokens that every sequence of a batch reads in one forward; more are read one by one


def masked_tokens(tokens: int) -> int:
    """Return for how many tokens per sequence the mask of a forward of so many has room."""
    return -(-tokens // MASK_STEP) * MASK_STEP


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
        case LossyPolicy() | ResumedPolicy():
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


def widest_layer(policy: TreePolicy) -> int:
    """Return the most tokens per sequence that one forward of a drafter has logits for; 0 where no model drafts."""
    match policy:
        case PlainPolicy() | LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            return 0
        case ChainPolicy() | ConfidentChainPolicy():
            return 1
        case HybridPolicy():
            return widest_layer(policy.model)
        case LossyPolicy() | ResumedPolicy():
            return widest_layer(policy.draft)
        case StackPolicy():
            return 1 + 2 * policy.max_chain  # what was committed is read again before what is drafted below
        case StaticPolicy():
            return max(policy.tree.widths)
        case Eagle2Policy():
            return policy.top_k
        case CastPolicy():
            return policy.max_width
        case OptTreePolicy():
            return min(policy.nodes, int(policy.children ** (policy.max_depth - 1)))
        case TalonPolicy():
            return max(most_widths(policy))


def deepest(policy: TreePolicy) -> int:
    """Return the most drafted tokens on one path of a tree."""
    match policy:
        case LookupPolicy() | SuffixPolicy():
            return policy.length
        case SuffixTreePolicy():
            return policy.nodes - 1
        case CachebackPolicy():
            return min(policy.max_depth, policy.nodes - 1)
        case HybridPolicy():
            return max(deepest(policy.text), deepest(policy.model))
        case LossyPolicy() | ResumedPolicy():
            return deepest(policy.draft)
        case StackPolicy():
            return policy.max_chain
        case _:
            return min(policy.draft_forwards, policy.max_verify_tokens - 1)


def most_unread(policy: TreePolicy) -> int:
    """Return the most committed tokens per sequence that a drafter reads in one forward before it drafts.

    The model of a hybrid reads what all the rounds since it last ran have committed: they copied.
    """
    last_round = 1 + deepest(policy)
    return max(last_round, READ_TOGETHER) if isinstance(drafting(policy), HybridPolicy) else last_round


def _most_drafted_by_talon(policy: TalonPolicy, batch: int | None) -> int:
    """Return the smaller of two bounds: what every sequence may draft, and what the widest may in each layer.

    The layer that fills a tree is not expanded, so a tree of N expands N - 2 nodes at most, and its layer d + 1 at
    most what the root, top_k nodes and d - 1 layers of one node each leave of them.
    """
    alone = policy.nodes - 2
    layers = sum(max(alone - policy.top_k - depth, 0) for depth in range(policy.draft_forwards - 2))
    widest = min(policy.top_k, alone) + layers if policy.draft_forwards > 1 else 0
    return widest if batch is None else min(widest, batch * alone)
