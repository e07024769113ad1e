"""A chain of an exit that is verified from the states that the exit left. Source: LayerSkip, arXiv:2404.16710."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..records.recording import Recorded
from ..records.results import PositionResults
from ..records.tree import TokenTree
from .chain import ChainPolicy, chains
from .delegating import DelegatingPolicy
from .naming import name_of
from .offers import Graded, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedPolicy(DelegatingPolicy):
    """Draft a chain by an exit; the verification continues where the exit stopped.

    The exit has run the target's first layers over the newest token and all drafted ones but the last. The verification
    runs them over that one, and the other layers over all. Only chains do: a tree's nodes are verified in another order
    than the exit reads them. Acceptance is that of `draft` alone.
    """

    draft: ChainPolicy
    kind: Literal["resumed"] = "resumed"

    complexity: ClassVar = 1
    grid_place: ClassVar = 11
    names: ClassVar = {
        r"(?P<draft>(?!LOSSY ).*) verified from the exit": lambda found, drafter: (
            f"{name_of(found['draft'], drafter)}, verified from the exit"
        )
    }

    @property
    def code(self) -> str:
        return f"{self.draft.code} verified from the exit"

    @property
    def fixed_tree(self) -> TokenTree:
        return self.draft.fixed_tree

    def results(self, recorded: Recorded) -> PositionResults:
        return self.draft.results(recorded)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        """Yield the chains of an exit whose states verifications can go on from."""
        for chain in chains(limits.most_tokens) if limits.resumes else ():
            yield Graded(cls(draft=chain), chain.results(recorded))

    @classmethod
    def probes(cls, most_tokens: int) -> list[ResumedPolicy]:
        return [cls(draft=ChainPolicy(length=4))]
