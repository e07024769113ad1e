"""A chain of an exit that is verified from the states that the exit left. Source: LayerSkip, arXiv:2404.16710."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..records.tree import TokenTree
from .base import name_of
from .chain import ChainPolicy
from .delegating import DelegatingPolicy

RESUMED = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedPolicy(DelegatingPolicy):
    """Draft a chain by an exit; the verification goes on where the exit stopped.

    The exit has run the target's first layers over the newest token and all drafted ones but the last. The verification
    runs them over that one, and the other layers over all. What is drafted and accepted is what `draft` alone drafts.

    Attributes:
        draft: the chain. A tree's nodes are verified in another order than the exit reads them, and are read again.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710 (self-speculative decoding that reuses the exit's states).
    """

    draft: ChainPolicy
    kind: Literal["resumed"] = "resumed"

    complexity: ClassVar = 1
    names: ClassVar = {
        r"(?P<draft>(?!LOSSY ).*) verified from the exit": lambda found, drafter: (
            f"{name_of(found['draft'], drafter)}, verified from the exit"
        )
    }

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"{self.draft.code} verified from the exit"

    @property
    def fixed_tree(self) -> TokenTree:
        """The chain as a tree."""
        return self.draft.fixed_tree
