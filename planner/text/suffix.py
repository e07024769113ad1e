"""A text with its suffix automaton: what followed its end before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels.automaton import FIRST, MATCHED, NEWEST, READ, Automaton, automaton_of, read
from ..kernels.ranking import ranking_of
from ..kernels.suffix import Bound, best_tree
from ..policies.text import SuffixPolicy, SuffixTreePolicy
from .tree import TextTree, chain_tree, room_for_tree

FIRST_ROOM = 256  # tokens


class SuffixText:
    """A growing text; what it proposes is a function of its tokens, however they came.

    Source: Hu et al. 2024, arXiv:2411.10666; Oliaro et al. 2024, arXiv:2411.04975.
    """

    def __init__(self) -> None:
        """Start with no token."""
        self._automaton: Automaton = automaton_of(FIRST_ROOM)

    @property
    def length(self) -> int:
        """Tokens read."""
        return int(self._automaton.head[READ])

    @property
    def match(self) -> int:
        """Tokens of the text's longest end that occurred before."""
        return int(self._automaton.longest[self._automaton.head[MATCHED]])

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens; O(1) amortised each for the automaton, and a step for each set of places its end occurs at."""
        needed = self.length + len(tokens)
        fresh = np.array(tokens, dtype=np.int64)
        if needed > len(self._automaton.text):
            fresh = np.concatenate([self._automaton.text[: self.length], fresh])
            self._automaton = automaton_of(2 * needed)
        read(self._automaton, fresh)

    def draft(self, policy: SuffixPolicy | SuffixTreePolicy) -> TextTree:
        """Return what the policy drafts behind the text."""
        return self._chain(policy) if isinstance(policy, SuffixPolicy) else self._tree(policy)

    def _chain(self, policy: SuffixPolicy) -> TextTree:
        match = self.match
        if match < policy.min_match:
            return chain_tree(())
        start = int(self._automaton.head[FIRST if policy.occurrence == "first" else NEWEST]) + 1
        most = min(policy.length, policy.factor * match + policy.offset)
        places = start + np.arange(most) % (self.length - start)  # a copy that reaches the end goes on with itself
        return chain_tree(self._automaton.text[places])

    def _tree(self, policy: SuffixTreePolicy) -> TextTree:
        most = policy.nodes - 1
        tree, places = room_for_tree(most), np.empty(most, dtype=np.int64)
        bound = Bound(most, policy.factor, policy.offset, policy.least_chance)
        nodes = best_tree(self._automaton, bound, ranking_of(most), places, tree)
        return tree[:, : nodes + 1]
