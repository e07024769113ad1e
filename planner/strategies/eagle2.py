"""The tree of EAGLE-2 and EAGLE-3: a beam of fixed width, then the best of all it saw. Source: arXiv:2406.16858."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from .base import Strategy, name_by, require_at_least


def _named(found: re.Match[str], drafter: str | None) -> str:
    nodes, depth, top_k = (int(found[name]) for name in ("nodes", "depth", "top_k"))
    return name_by(f"tree of {min(nodes, top_k + depth * top_k**2 + 1)} nodes", drafter) + " (EAGLE-2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Policy(Strategy):
    """Grow a beam of `top_k` nodes `depth` times below the first layer, verify the best ones.

    Defaults are those of EAGLE-3's published loader; `verify_tokens` counts the root.
    """

    verify_tokens: int = 60
    depth: int = 7
    top_k: int = 10
    kind: Literal["eagle2"] = "eagle2"

    complexity: ClassVar = 3
    names: ClassVar = {r"EAGLE-2 (?P<nodes>\d+)/(?P<depth>\d+)/(?P<top_k>\d+)": _named}

    def __post_init__(self) -> None:
        require_at_least("EAGLE-2 verify_tokens", self.verify_tokens, 2)
        require_at_least("EAGLE-2 depth", self.depth, 0)
        require_at_least("EAGLE-2 top_k", self.top_k, 1)

    @property
    def code(self) -> str:
        """Every setting in one line: verified tokens / depth / top k."""
        return f"EAGLE-2 {self.verify_tokens}/{self.depth}/{self.top_k}"

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included; fewer when candidates run out."""
        candidates = self.top_k + self.depth * self.top_k**2
        return min(self.verify_tokens, candidates + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of every drafter forward: the root's own and one beam per further layer."""
        return (1,) + (self.top_k,) * self.depth

    @property
    def widest_layer(self) -> int:
        """Most tokens per sequence that one forward has logits for."""
        return self.top_k

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return self.top_k

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return self.top_k if self.depth else 1
