"""A chain accepted by FLy's rule: LOSSY."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..errors import PlanError
from .chain_policies import ChainPolicy, IndependentPolicy
from .fly import FlyRule
from .stack_policy import StackPolicy

FlyDraft: TypeAlias = ChainPolicy | StackPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class FlyPolicy(IndependentPolicy):
    """Draft a chain, and let the rule decide which of its tokens stay: the output is not the target's own.

    Attributes:
        draft: what is drafted, a model's own chain. A stack of one model over "lookup" is FLy's drafter that the text
            accelerates.
        rule: of acceptance.

    Source: Li et al. 2025, arXiv:2511.22972.
    """

    draft: FlyDraft
    rule: FlyRule
    kind: Literal["lossy-fly"] = "lossy-fly"

    def __post_init__(self) -> None:
        if isinstance(self.draft, StackPolicy) and self.draft.siblings:
            raise PlanError(f"FLy accepts chains, and a {self.draft.label} is a tree; take one without siblings")

    @property
    def label(self) -> str:
        """Name for people; says that it is lossy."""
        return f"LOSSY {self.draft.label} by {self.rule.label}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round."""
        return self.draft.draft_forwards

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.draft.max_verify_tokens
