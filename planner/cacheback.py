"""A text with Cacheback's table of it: which n-grams followed its last tokens before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .kernels.cacheback import Limits, draft_tree, trie_of
from .kernels.ranking import ranking_of
from .kernels.table import read, table_of
from .text_policies import HOPS, CachebackPolicy
from .text_tree import TextTree, room_for_tree

Floats = NDArray[np.float64]


class CachebackText:
    """A growing text and what its table of n-grams proposes: a function of its tokens, however they came.

    It learns from committed tokens alone, each of which ends one n-gram, and looking followers up leaves their recency
    as it is.

    Source: Ma et al. 2025, arXiv:2511.21699.
    """

    def __init__(self, *, leader_tokens: int, follower_tokens: int, leaders: int, followers: int) -> None:
        """Start with no token."""
        self.length = 0  # tokens read
        self._table = table_of(leader_tokens, follower_tokens, leaders, followers)
        self._trie = trie_of(followers, follower_tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens; O(followers) each."""
        read(self._table, np.array(tokens, dtype=np.int64))
        self.length += len(tokens)

    def draft(self, policy: CachebackPolicy) -> TextTree:
        """Return the tree behind the text, for a policy of a table of this size."""
        most = policy.nodes - 1
        tree, places = room_for_tree(most), np.empty(most, dtype=np.int64)
        limits = Limits(most, policy.max_depth, policy.least_chance)
        nodes = draft_tree(self._table, chances_of(policy), limits, ranking_of(most), self._trie, places, tree)
        return tree[:, : nodes + 1]


def chances_of(policy: CachebackPolicy) -> Floats:
    """Return (hops, followers, follower_tokens): how likely each node is that a follower adds, given its leader."""
    shape = HOPS, policy.followers, policy.follower_tokens
    if policy.chances:
        return np.array(policy.chances).reshape(shape)
    by_rank = 1.0 / (2.0 + np.arange(policy.followers))
    return np.broadcast_to(by_rank[None, :, None], shape).copy()
