"""What is kept of a text to draft from it, and the drafts made of that: one code for replay and runtime."""

from __future__ import annotations

from collections.abc import Sequence

from ..strategies.cacheback import CachebackPolicy
from ..strategies.lookup import LookupPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.text import TextPolicy
from .cacheback import CachebackText, table_key
from .frozen import FrozenTable
from .image_ids import said
from .searched import LookupText
from .suffix import SuffixText
from .tree import TextTree


class TextState:
    """One growing text, and what the policies that were asked about it keep of it, each from when it was first asked.

    What it drafts is a function of the tokens and the policy alone. Images in a text are passed over: what stands
    behind one follows what stands before it.
    """

    def __init__(self) -> None:
        """Start with nothing kept."""
        self._said: list[int] = []
        self._read = 0  # tokens of the text so far, images included
        self._lookup: LookupText | None = None
        self._suffix: SuffixText | None = None
        self._tables: dict[tuple[int, int, int, int, FrozenTable | None], CachebackText] = {}

    def draft(self, tokens: Sequence[int], policy: TextPolicy) -> TextTree:
        """Return what a policy drafts behind the text.

        Args:
            tokens: the committed text; it begins with what it was before.
            policy: any.
        """
        tokens = self._heard(tokens)
        match policy:
            case LookupPolicy():
                return self._looked_up(tokens, (), policy)
            case SuffixPolicy() | SuffixTreePolicy():
                self._suffix = self._suffix or SuffixText()
                return self._suffix.draft(policy, tokens[self._suffix.length :])
            case CachebackPolicy():
                table = self._table(policy)
                table.read(tokens[table.length :])
                return table.draft(policy)

    def behind(self, tokens: Sequence[int], held: Sequence[int], policy: LookupPolicy) -> TextTree:
        """Return what a policy drafts behind the text and tokens that are not committed; the text alone is kept."""
        return self._looked_up(self._heard(tokens), said(held), policy)

    def _heard(self, tokens: Sequence[int]) -> list[int]:
        """Take in what is new of the text; return all that was said in it."""
        self._said += said(tokens[self._read :])
        self._read = len(tokens)
        return self._said

    def _looked_up(self, tokens: list[int], held: Sequence[int], policy: LookupPolicy) -> TextTree:
        self._lookup = self._lookup or LookupText()
        return self._lookup.draft(policy, tokens[self._lookup.length :], held)

    def _table(self, policy: CachebackPolicy) -> CachebackText:
        key = table_key(policy)
        if key not in self._tables:
            self._tables[key] = CachebackText(policy)
        return self._tables[key]
