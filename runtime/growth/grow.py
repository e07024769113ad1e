"""Growing the tree a policy asks for on a device: node for node what `planner.growth.grow` draws from equal scores.

A decision that depends on scores is a mask, so every forward is as wide as any sequence could need, and there are as
many as any could need unless the host learns in time that all have stopped: the widths that really ran are in the
draft. Sums behind thresholds are added in the planner's order on a CPU; a GPU's scan may round their last bit
differently, which matters only where a gain and its threshold agree to 16 digits.
"""

from __future__ import annotations

import torch

from ...errors import PlanError
from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies import TreePolicy
from ...planner.strategies.cacheback import CachebackPolicy
from ...planner.strategies.cast import CastPolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.confident_chain import ConfidentChainPolicy
from ...planner.strategies.eagle2 import Eagle2Policy
from ...planner.strategies.exit_chain import ResumedPolicy
from ...planner.strategies.hybrid import HybridPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.lossy import LossyPolicy
from ...planner.strategies.opt_tree import OptTreePolicy
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.stack import StackPolicy
from ...planner.strategies.static import StaticPolicy
from ...planner.strategies.suffix import SuffixPolicy
from ...planner.strategies.suffix_tree import SuffixTreePolicy
from ...planner.strategies.talon import TalonPolicy
from .cast import device_rule, grow_cast
from .chain import grow_chain, grow_confident_chain
from .draft import DeviceDraft, DeviceScorer
from .eagle2 import grow_eagle2
from .opt_tree import grow_opt_tree
from .static import device_shape, grow_static
from .talon import grow_talon


def grow_on_device(policy: TreePolicy, scorer: DeviceScorer, batch: int) -> DeviceDraft:
    """Return the trees that `policy` drafts for a batch of sequences; nothing is read from the device.

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


def _grown(policy: TreePolicy, scorer: DeviceScorer, batch: int) -> DeviceDraft:
    match policy:
        case PlainPolicy():
            return roots_on_device(batch, scorer.device)
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
            raise PlanError(f"a {policy.label} is drafted by several models; ask the runtime's StackDrafter")


def kept_for(policy: TreePolicy, device: torch.device) -> object:
    """Return the memory on a device that a policy's trees grow by, which recorded growing goes on reading."""
    match policy:
        case StaticPolicy():
            return device_shape(policy.tree, device)
        case CastPolicy():
            return device_rule(policy, device)
        case _:
            return None


def roots_on_device(batch: int, device: torch.device) -> DeviceDraft:
    """Return trees of the root alone."""
    one = torch.ones(batch, dtype=torch.int64, device=device)
    root = one.unsqueeze(1)
    return DeviceDraft(tokens=root * ROOT_TOKEN, parents=-root, depths=root * 0, sizes=one, widths=())
