"""What all lossy policies share: a chain is drafted, and a rule decides which of its tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...errors import PlanError
from .chain import ChainPolicy, IndependentPolicy
from .stack import StackPolicy

LossyDraft: TypeAlias = ChainPolicy | StackPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyPolicy(IndependentPolicy):
    """Draft a chain, and let a rule decide which of its tokens stay: the output is not the target's own.

    Attributes:
        draft: what is drafted, a model's own chain, or that of a stack without siblings.
    """

    draft: LossyDraft

    def __post_init__(self) -> None:
        if isinstance(self.draft, StackPolicy) and self.draft.siblings:
            raise PlanError(f"lossy rules accept chains, and a {self.draft.label} is a tree; take one without siblings")

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round."""
        return self.draft.draft_forwards

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.draft.max_verify_tokens
