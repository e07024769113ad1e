"""What to draft each round: one strategy (see `base.Strategy`), one file; each is imported and registered here."""

from __future__ import annotations

import json
from typing import TypeAlias, get_args

from ...errors import PlanError
from ...profiler.records.wire import from_json, to_json
from .base import Strategy
from .cacheback import CachebackPolicy
from .cast import CastPolicy
from .chain import ChainPolicy
from .confident_chain import ConfidentChainPolicy
from .delegating import DelegatingPolicy
from .eagle2 import Eagle2Policy
from .exit_chain import ResumedPolicy
from .fly import FlyPolicy
from .hybrid import HybridPolicy
from .lookup import LookupPolicy
from .opt_tree import OptTreePolicy
from .pad import PadPolicy
from .plain import PlainPolicy
from .stack import StackPolicy
from .static import StaticPolicy
from .suffix import SuffixPolicy
from .suffix_tree import SuffixTreePolicy
from .talon import TalonPolicy

TreePolicy: TypeAlias = (
    PlainPolicy
    | LookupPolicy
    | SuffixPolicy
    | SuffixTreePolicy
    | CachebackPolicy
    | HybridPolicy
    | StackPolicy
    | ChainPolicy
    | ConfidentChainPolicy
    | StaticPolicy
    | Eagle2Policy
    | TalonPolicy
    | OptTreePolicy
    | CastPolicy
    | ResumedPolicy
    | FlyPolicy
    | PadPolicy
)
REGISTRY: dict[str, type[TreePolicy]] = {strategy.own_kind(): strategy for strategy in get_args(TreePolicy)}
POLICY_KINDS = tuple(REGISTRY)


def drafting(policy: TreePolicy) -> TreePolicy:
    """Return what a strategy drafts, however it is verified and accepted: a lossy one's `draft`."""
    return policy.draft if isinstance(policy, DelegatingPolicy) else policy


def policy_to_json(policy: Strategy) -> str:
    """Return the strategy as JSON text whose `kind` says which it is."""
    return to_json(policy)


def policy_from_json(text: str) -> TreePolicy:
    """Return the strategy a JSON text describes.

    PlanError if the text is no JSON object or names no known kind, SpectuneError if a field is wrong or missing.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"a policy must be JSON, got {text[:60]!r} ({error}); write it with policy_to_json") from error
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if kind not in REGISTRY:
        raise PlanError(f"unknown policy kind {kind!r}; use one of {', '.join(REGISTRY)}")
    return from_json(REGISTRY[kind], text)
