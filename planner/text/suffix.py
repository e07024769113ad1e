"""A text with its suffix automaton: what followed its end before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..growth.draft import Ints
from ..kernels.automaton import FIRST, MATCHED, NEWEST, READ, Automaton, automaton_of, read
from ..kernels.ranking import Ranking, ranking_of
from ..kernels.suffix import Bound, read_and_grow
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
        self._rankings: dict[int, tuple[Ranking, Ints]] = {}  # by most nodes, with room to work in

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
        fresh = self._placed(tokens)  # first: it may make another automaton
        read(self._automaton, fresh)

    def draft(self, policy: SuffixPolicy | SuffixTreePolicy, fresh: Sequence[int] = ()) -> TextTree:
        """Append tokens; return what the policy drafts behind the text."""
        if isinstance(policy, SuffixTreePolicy):
            return self._tree(policy, fresh)
        self.read(fresh)
        return self._chain(policy)

    def _placed(self, tokens: Sequence[int]) -> Ints:
        """Have room for more tokens; return what is to be read: the whole text where the automaton is a new one."""
        needed = self.length + len(tokens)
        fresh = np.array(tokens, dtype=np.int64)
        if needed > len(self._automaton.text):
            fresh = np.concatenate([self._automaton.text[: self.length], fresh])
            self._automaton = automaton_of(2 * needed)
        return fresh

    def _chain(self, policy: SuffixPolicy) -> TextTree:
        match = self.match
        if match < policy.min_match:
            return chain_tree(())
        start = int(self._automaton.head[FIRST if policy.occurrence == "first" else NEWEST]) + 1
        most = min(policy.length, policy.factor * match + policy.offset)
        places = start + np.arange(most) % (self.length - start)  # a copy that reaches the end goes on with itself
        return chain_tree(self._automaton.text[places])

    def _tree(self, policy: SuffixTreePolicy, fresh: Sequence[int]) -> TextTree:
        most = policy.nodes - 1
        if most not in self._rankings:
            self._rankings[most] = ranking_of(most), np.empty(most, dtype=np.int64)
        ranking, places = self._rankings[most]
        tree, placed = room_for_tree(most), self._placed(fresh)
        bound = Bound(most, policy.factor, policy.offset, policy.least_chance)
        nodes = read_and_grow(self._automaton, placed, bound, ranking, places, tree)
        return tree[:, : nodes + 1]
