"""Growing the tree a policy asks for, one drafter forward per layer.

Replay and runtime call this very code with different scorers. Path scores are float32 sums of
conditional log-probabilities from the root down; ties go to the shallower node, then to the
one recorded first.
"""

from __future__ import annotations

import numpy as np

from ...errors import PlanError
from ..records.draft import ROOT_TOKEN, Children, DraftBatch, LayerScorer, draft_of_one_shape
from ..strategies import TreePolicy
from ..strategies.cacheback import CachebackPolicy
from ..strategies.cast import CastPolicy
from ..strategies.chain import ChainPolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.exit_chain import ResumedPolicy
from ..strategies.hybrid import HybridPolicy
from ..strategies.lookup import LookupPolicy
from ..strategies.lossy import LossyPolicy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.plain import PlainPolicy
from ..strategies.stack import StackPolicy
from ..strategies.static import StaticPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.talon import TalonPolicy
from .cast import grow_cast
from .chain import grow_chain, grow_confident_chain
from .eagle2 import grow_eagle2
from .opt_tree import grow_opt_tree
from .static import grow_static
from .talon import grow_talon

__all__ = ["Children", "DraftBatch", "LayerScorer", "grow"]


def grow(policy: TreePolicy, scorer: LayerScorer, batch: int) -> DraftBatch:
    """Return the trees that `policy` drafts for a batch of sequences.

    Args:
        policy: any but one that drafts from the text and needs no scorer, and a StackPolicy, which needs several.
        scorer: a fresh scorer of this round; plain decoding never calls it.
        batch: sequences the scorer serves.

    Raises:
        PlanError: the policy drafts from the text or is a StackPolicy, or the scorer serves another batch.
    """
    draft = _grown(policy, scorer, batch)
    if len(draft.tokens) != batch:
        raise PlanError(f"the scorer serves {len(draft.tokens)} sequences, expected {batch}; pass the scorer's batch")
    return draft


def _grown(policy: TreePolicy, scorer: LayerScorer, batch: int) -> DraftBatch:
    match policy:
        case PlainPolicy():
            return draft_of_one_shape(np.full((batch, 1), ROOT_TOKEN, dtype=np.int64), (-1,), (0,), ())
        case ChainPolicy():
            return grow_chain(policy, scorer)
        case ConfidentChainPolicy():
            return grow_confident_chain(policy, scorer)
        case StaticPolicy():
            return grow_static(policy, scorer)
        case Eagle2Policy():
            return grow_eagle2(policy, scorer)
        case TalonPolicy():
            return grow_talon(policy, scorer)
        case OptTreePolicy():
            return grow_opt_tree(policy, scorer)
        case CastPolicy():
            return grow_cast(policy, scorer)
        case LossyPolicy() | ResumedPolicy():
            return _grown(policy.draft, scorer, batch)
        case LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            raise PlanError(f"a {policy.label} has no drafter to grow with; ask a text_state.TextState")
        case HybridPolicy():
            raise PlanError(f"a {policy.label} has two sources; ask the runtime's HybridDrafter")
        case StackPolicy():
            raise PlanError(
                f"a {policy.label} is drafted by several models and not by one scorer; ask the runtime's drafter"
            )
