"""What all lossy strategies share: a chain is drafted, and a rule decides which of its tokens stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ...errors import PlanError
from ...profiler.records.model import ModelIdentity
from ..records.recording import Recorded
from ..records.results import PositionResults
from .chain import ChainPolicy
from .delegating import DelegatingPolicy
from .naming import name_of
from .stack import StackPolicy

LossyDraft: TypeAlias = ChainPolicy | StackPolicy


def _named(found: re.Match[str], drafter: str | None) -> str:
    name = name_of(found["draft"], drafter)
    return f"LOSSY {name} ({found['rule']})" if found["rule"] else f"LOSSY {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyPolicy(DelegatingPolicy):
    """Draft a chain, a model's or a stack's without siblings; a rule decides which tokens stay: LOSSY."""

    complexity: ClassVar = 6
    is_lossy: ClassVar = True
    is_recorded: ClassVar = False
    has_shape: ClassVar = False
    names: ClassVar = {r"LOSSY (?P<draft>.*?)(?: by (?P<rule>[^,]*).*)?": _named}

    def __post_init__(self) -> None:
        if isinstance(self.draft, StackPolicy) and self.draft.siblings:
            raise PlanError(f"lossy rules accept chains, and a {self.draft.label} is a tree; take one without siblings")

    @property
    def judge(self) -> ModelIdentity | None:
        return None

    def results(self, recorded: Recorded) -> PositionResults:
        raise PlanError(f"{self.label} decodes other texts than the target's own; its own rounds are recorded")


def classifiers_of(policies: Iterable[object]) -> tuple[tuple[str, ModelIdentity], ...]:
    """Return the classifiers of policies by name, in order of first use; PlanError if one name has two weights."""
    found: dict[str, ModelIdentity] = {}
    for policy in policies:
        judge = policy.judge if isinstance(policy, LossyPolicy) else None
        if judge is not None:
            known = found.setdefault(judge.name, judge)
            if known.key != judge.key:
                raise PlanError(
                    f"the classifier {known.name!r} has two sets of weights, {known.key} and {judge.key}; "
                    "give each its own name"
                )
    return tuple(found.items())
