"""A text with its suffix automaton: what followed its end before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..kernels.automaton import FIRST, NEWEST, automaton_in, memory_of
from ..kernels.ranking import ranking_memory_of
from ..kernels.suffix import read_and_copy, read_and_grow
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from .tree import TextTree

FIRST_ROOM = 256  # tokens


def copying_of(policy: SuffixPolicy) -> Ints:
    """Return a chain's policy as kernels take it."""
    occurrence = FIRST if policy.occurrence == "first" else NEWEST
    return np.array([policy.length, policy.factor, policy.offset, policy.min_match, occurrence], dtype=np.int64)


def limits_of(policy: SuffixTreePolicy) -> tuple[Ints, Floats]:
    """Return a tree's limits as `read_and_grow` takes them: whole numbers, and the least chance and score."""
    limits = np.array([policy.nodes - 1, policy.factor, policy.offset, policy.min_match], dtype=np.int64)
    return limits, np.array([policy.least_chance, policy.least_score])


class SuffixText:
    """A growing text; what it proposes is a function of its tokens, however they came.

    Source: Hu et al. 2024, arXiv:2411.10666; Oliaro et al. 2024, arXiv:2411.04975.
    """

    def __init__(self) -> None:
        """Start with no token."""
        self._memory, self._room = memory_of(FIRST_ROOM), FIRST_ROOM
        self._asked: SuffixPolicy | None = None  # last; policies seldom change, and take long to be looked up
        self._numbers: Ints = np.empty(0, dtype=np.int64)  # of that one, as the kernel takes them
        self._rooms: dict[int, tuple[Floats, Ints]] = {}  # to work in, by most nodes
        self.length = 0  # tokens read

    def draft(self, policy: SuffixPolicy | SuffixTreePolicy, fresh: Sequence[int] = ()) -> TextTree:
        """Append tokens; return what the policy drafts behind the text.

        A token costs O(1) amortised for the automaton, and a step for each set of places its end occurs at.
        """
        placed = self._placed(fresh)
        if isinstance(policy, SuffixTreePolicy):
            return self._tree(policy, placed)
        return self._chain(policy, placed)

    def _placed(self, tokens: Sequence[int]) -> Ints:
        """Have room for more tokens; return what is to be read: the whole text where the automaton is a new one."""
        needed = self.length + len(tokens)
        fresh = np.array(tokens, dtype=np.int64)
        if needed > self._room:
            fresh = np.concatenate([automaton_in(self._memory).text[: self.length], fresh])
            self._memory, self._room = memory_of(2 * needed), 2 * needed
        self.length = needed
        return fresh

    def _chain(self, policy: SuffixPolicy, placed: Ints) -> TextTree:
        if policy is not self._asked:
            self._asked, self._numbers = policy, copying_of(policy)
        chain = np.empty((3, policy.length + 1), dtype=np.int64)
        return chain[:, : read_and_copy(self._memory, placed, self._numbers, chain)]

    def _tree(self, policy: SuffixTreePolicy, placed: Ints) -> TextTree:
        most = policy.nodes - 1
        if most not in self._rooms:
            self._rooms[most] = ranking_memory_of(most)
        tree = np.empty((3, most + 1), dtype=np.int64)
        nodes = read_and_grow(self._memory, placed, *limits_of(policy), *self._rooms[most], tree)
        return tree[:, :nodes]
