"""What to draft each round: one frozen record per way of growing a tree.

Every policy has a `kind` that names it in JSON, a `label` for people, a `code` that says every setting in one line and
by which documents name it, the most drafter forwards of one round (`draft_forwards`), the most tokens one verify feeds
per sequence, root included (`max_verify_tokens`), and says whether sequences of a batch influence each other
(`is_coupled`).
"""

from __future__ import annotations

import json
from typing import TypeAlias

from ...errors import PlanError
from ...profiler.records.wire import from_json, to_json
from .chain import ChainPolicy, ConfidentChainPolicy, LookupPolicy, PlainPolicy
from .fly import FlyPolicy
from .hybrid import HybridPolicy
from .lossy import LossyPolicy
from .pad import PadPolicy
from .resumed import ResumedPolicy
from .stack import StackPolicy
from .text import CachebackPolicy, SuffixPolicy, SuffixTreePolicy
from .tree import CastPolicy, Eagle2Policy, OptTreePolicy, StaticPolicy, TalonPolicy

__all__ = [
    "POLICY_KINDS",
    "CachebackPolicy",
    "CastPolicy",
    "ChainPolicy",
    "ConfidentChainPolicy",
    "DraftedPolicy",
    "Eagle2Policy",
    "FlyPolicy",
    "HybridPolicy",
    "LookupPolicy",
    "LossyPolicy",
    "OptTreePolicy",
    "PadPolicy",
    "PlainPolicy",
    "ResumedPolicy",
    "StackPolicy",
    "StaticPolicy",
    "SuffixPolicy",
    "SuffixTreePolicy",
    "TalonPolicy",
    "TextPolicy",
    "TreePolicy",
    "drafting",
    "policy_from_json",
    "policy_to_json",
]

DraftedPolicy: TypeAlias = (
    ChainPolicy | ConfidentChainPolicy | StaticPolicy | Eagle2Policy | TalonPolicy | OptTreePolicy | CastPolicy
)
TextPolicy: TypeAlias = LookupPolicy | SuffixPolicy | SuffixTreePolicy | CachebackPolicy  # drafted by the text itself
TreePolicy: TypeAlias = (
    PlainPolicy | TextPolicy | HybridPolicy | StackPolicy | DraftedPolicy | ResumedPolicy | FlyPolicy | PadPolicy
)

_POLICIES: dict[str, type[TreePolicy]] = {
    "plain": PlainPolicy,
    "chain": ChainPolicy,
    "confident-chain": ConfidentChainPolicy,
    "lookup": LookupPolicy,
    "suffix": SuffixPolicy,
    "suffix-tree": SuffixTreePolicy,
    "cacheback": CachebackPolicy,
    "hybrid": HybridPolicy,
    "static": StaticPolicy,
    "eagle2": Eagle2Policy,
    "talon": TalonPolicy,
    "opt-tree": OptTreePolicy,
    "cast": CastPolicy,
    "stack": StackPolicy,
    "resumed": ResumedPolicy,
    "lossy-fly": FlyPolicy,
    "lossy-pad": PadPolicy,
}
POLICY_KINDS = tuple(_POLICIES)


def drafting(policy: TreePolicy) -> TreePolicy:
    """Return what a policy drafts, however it is verified and accepted: of a lossy one its drafting alone."""
    return policy.draft if isinstance(policy, LossyPolicy | ResumedPolicy) else policy


def policy_to_json(policy: TreePolicy) -> str:
    """Return the policy as JSON text whose `kind` says which policy it is."""
    return to_json(policy)


def policy_from_json(text: str) -> TreePolicy:
    """Return the policy a JSON text describes.

    Raises:
        PlanError: the text is no JSON object or names no known kind.
        SpectuneError: a field is unknown, missing or of the wrong type.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"a policy must be JSON, got {text[:60]!r} ({error}); write it with policy_to_json") from error
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if kind not in _POLICIES:
        raise PlanError(f"unknown policy kind {kind!r}; use one of {', '.join(_POLICIES)}")
    return from_json(_POLICIES[kind], text)
