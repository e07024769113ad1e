"""Plain decoding: nothing is drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .base import Source, Strategy

PLAIN = "plain decoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPolicy(Strategy):
    """Decode one token at a time; nothing is drafted."""

    kind: Literal["plain"] = "plain"

    source: ClassVar[Source] = "none"
    complexity: ClassVar = 0
    names: ClassVar = {"plain": lambda found, drafter: PLAIN}

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return "plain"

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence: the last committed one."""
        return 1

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return 0

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return 0
