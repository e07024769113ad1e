"""A tree of one shape: the same ranks at every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..records.tree import TokenTree
from .base import Strategy, named_tree, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPolicy(Strategy):
    """Draft the same tree of ranks at every position."""

    tree: TokenTree
    kind: Literal["static"] = "static"

    complexity: ClassVar = 1
    names: ClassVar = {r"static tree of (?P<nodes>\d+), depth \d+": named_tree("fixed")}

    def __post_init__(self) -> None:
        require_at_least("static tree size", self.tree.size, 2)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"static tree of {self.tree.size}, depth {self.tree.depth}"

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included."""
        return self.tree.size

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of every drafter forward: one per level of the tree."""
        return self.tree.widths

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return max(self.tree.ranks) + 1

    @property
    def fixed_tree(self) -> TokenTree:
        """The tree."""
        return self.tree
