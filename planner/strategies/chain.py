"""A chain: the drafter's most likely token, `length` times. Source: Leviathan et al. 2023, arXiv:2211.17192."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..records.tree import TokenTree
from .base import Strategy, name_by, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPolicy(Strategy):
    """Draft the drafter's most likely token `length` times."""

    length: int
    kind: Literal["chain"] = "chain"

    complexity: ClassVar = 0
    names: ClassVar = {
        r"chain of (?P<length>\d+)": lambda found, drafter: name_by(f"chain of {found['length']}", drafter)
    }

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"chain of {self.length}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of every drafter forward: one per drafted token."""
        return (1,) * self.length

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included."""
        return self.length + 1

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return 1

    @property
    def fixed_tree(self) -> TokenTree:
        """The chain as a tree."""
        return TokenTree(parents=tuple(range(-1, self.length)), ranks=(0,) * (self.length + 1))
