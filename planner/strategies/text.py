"""What strategies share that draft from the text itself, without a model.

What they draft is a function of the committed text alone, so they replay from the recorded texts and need no recording
of their own.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Bounds, Namer, Source, Strategy, counted


class TextPolicy(Strategy):
    """A strategy that drafts from the text itself."""

    __slots__ = ()
    source: ClassVar[Source] = "text"

    @property
    def longest(self) -> int:
        """Most drafted tokens on one path."""
        return self.max_verify_tokens - 1

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become."""
        return Bounds(depth=self.longest, width=1, tokens=self.max_verify_tokens)

    @property
    def children(self) -> int:
        """Best next tokens of a node that a model looks at: none drafts."""
        return 0

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure: none runs."""
        return 0


def named_copy(of: str = "") -> Namer:
    """Return what names chains copied from the text, whose code tells their length."""
    return lambda found, drafter: f"copy from the text, up to {counted(int(found['length']), 'token')}{of}"


def named_text_tree(of: str) -> Namer:
    """Return what names trees drafted from the text, whose code tells their nodes."""
    return lambda found, drafter: f"tree of {found['nodes']} nodes from the text ({of})"
