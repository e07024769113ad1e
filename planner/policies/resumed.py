"""A chain of an exit that is verified from the states that the exit left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .chain import ChainPolicy, IndependentPolicy

RESUMED = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedPolicy(IndependentPolicy):
    """Draft a chain by an exit; the verification goes on where the exit stopped.

    The exit has run the target's first layers over the newest token and all drafted ones but the last. The verification
    runs them over that one, and the other layers over all. What is drafted and accepted is what `draft` alone drafts.

    Attributes:
        draft: the chain. A tree's nodes are verified in another order than the exit reads them, and are read again.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710 (self-speculative decoding that reuses the exit's states).
    """

    draft: ChainPolicy
    kind: Literal["resumed"] = "resumed"

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"{self.draft.code} verified from the exit"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round."""
        return self.draft.draft_forwards

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included."""
        return self.draft.max_verify_tokens
