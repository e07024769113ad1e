"""The most that decoding by a policy holds and feeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..pricing.cells import Cell
from ..strategies import TreePolicy, drafting
from ..strategies.lossy import LossyPolicy
from ..strategies.stack import StackPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The most that a decoder holds and feeds at once."""

    slots: int  # sequences
    capacity: int  # cache positions of each
    prompt_tokens: int  # of the longest prompt
    verify_tokens: int  # per sequence, root and padding included
    verify_depths: int = 1  # different places in the text that these tokens stand at
    layer_tokens: int = 0  # per sequence, in the widest forward of a drafter; 0 without a drafting model
    scored_tokens: int = 0  # of these, those whose scores are looked at
    is_ranked: bool = False  # those forwards are asked for their best tokens alone, not for probabilities
    unread_tokens: int = 0  # per sequence, committed since the drafter last read, that it reads together
    is_lossy: bool = False  # another rule than the target's own draws reads its scores
    resumed_tokens: int = 0  # per sequence, of a verification that goes on from states that an exit keeps


def load_of(cell: Cell, policy: TreePolicy, run_tokens: Sequence[int] = ()) -> Load:
    """Return what a policy holds and feeds in a cell, the cell's context being taken for the longest prompt."""
    verified, drafts = policy.max_verify_tokens, drafting(policy)
    fed = max(verified, *run_tokens[: verified + 1], 1)
    return Load(
        slots=cell.batch,
        capacity=cell.context + max(policy.draft_room(cell.batch), fed) + 1,
        prompt_tokens=cell.context,
        verify_tokens=fed,
        verify_depths=1 + policy.bounds.depth,
        layer_tokens=policy.widest_layer,
        scored_tokens=drafts.max_chain + 1 if isinstance(drafts, StackPolicy) else policy.widest_layer,
        is_ranked=isinstance(drafts, StackPolicy),
        unread_tokens=policy.most_unread,
        is_lossy=isinstance(policy, LossyPolicy),
        resumed_tokens=fed if policy.kind == "resumed" else 0,
    )
