"""A text in which prompt lookup searches round by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Ints
from ..kernels.lookup import append_and_copy
from ..strategies.lookup import LookupPolicy
from .tree import TextTree

FIRST_ROOM = 256  # tokens


def search_of(policy: LookupPolicy) -> Ints:
    """Return a policy as kernels take it.

    Raises:
        PlanError: it searches in an engine's memory.
    """
    is_first = policy.occurrence_in_text == "first"
    return np.array([policy.max_ngram, policy.min_ngram, policy.length, is_first])


class LookupText:
    """A growing text in which a decoder looks n-grams up round by round: what `find_continuation` finds, at once.

    It lies in an array that only what is new is written to. A list would be read whole in every round.
    """

    def __init__(self) -> None:
        """Start with no token."""
        self.length = 0  # tokens read
        self._text = np.empty(FIRST_ROOM, dtype=np.int64)
        self._searches: dict[LookupPolicy, Ints] = {}  # as the kernel takes them

    def draft(self, policy: LookupPolicy, fresh: Sequence[int] = (), held: Sequence[int] = ()) -> TextTree:
        """Append tokens; return what the policy drafts behind the text.

        Args:
            policy: which n-grams to look for.
            fresh: tokens to append.
            held: tokens that stand behind them in this search alone.

        Raises:
            PlanError: the policy searches in an engine's memory.
        """
        if policy not in self._searches:
            self._searches[policy] = search_of(policy)
        before, self.length = self.length, self.length + len(fresh)
        needed = self.length + len(held)
        if needed > len(self._text):
            self._text = np.concatenate([self._text[:before], np.empty(2 * needed - before, dtype=np.int64)])
        chain = np.empty((3, policy.length + 1), dtype=np.int64)
        new = np.array([*fresh, *held], dtype=np.int64)
        return chain[:, : append_and_copy(self._text, before, new, self._searches[policy], chain)]
