"""A text with Cacheback's table of it: which n-grams followed its last tokens before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.cacheback import Limits, Tables, draft_tree, trie_of
from ..kernels.ranking import ranking_of
from ..kernels.table import read, table_of
from ..strategies.cacheback import HOPS, CachebackPolicy
from .frozen import FrozenTable, no_table, unpacked_table
from .tree import TextTree, room_for_tree

Floats = NDArray[np.float64]


class CachebackText:
    """A growing text and what its table of n-grams proposes: a function of its tokens, however they came.

    It learns from committed tokens alone, each of which ends one n-gram, and looking followers up leaves their recency
    as it is.

    Source: Ma et al. 2025, arXiv:2511.21699.
    """

    def __init__(self, policy: CachebackPolicy) -> None:
        """Start with no token and the tables of a policy."""
        self.length = 0  # tokens read
        self._tables = tables_of(policy)
        self._trie = trie_of(self._tables)

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens; O(followers) each."""
        read(self._tables.own, np.array(tokens, dtype=np.int64))
        self.length += len(tokens)

    def draft(self, policy: CachebackPolicy) -> TextTree:
        """Return the tree behind the text, for a policy of the same tables."""
        most = policy.nodes - 1
        tree, places = room_for_tree(most), np.empty(most, dtype=np.int64)
        limits = Limits(most, policy.max_depth, policy.least_chance)
        nodes = draft_tree(self._tables, chances_of(policy), limits, ranking_of(most), self._trie, places, tree)
        return tree[:, : nodes + 1]


def tables_of(policy: CachebackPolicy) -> Tables:
    """Return a policy's tables: an empty one for the text, and its frozen one."""
    tokens = policy.leader_tokens, policy.follower_tokens
    frozen = no_table(*tokens) if policy.frozen is None else unpacked_table(policy.frozen)
    return Tables(own=table_of(*tokens, policy.leaders, policy.followers), frozen=frozen)


def table_key(policy: CachebackPolicy) -> tuple[int, int, int, int, FrozenTable | None]:
    """Return what two policies have in common that can share one text's tables."""
    return policy.leader_tokens, policy.follower_tokens, policy.leaders, policy.followers, policy.frozen


def chances_of(policy: CachebackPolicy) -> Floats:
    """Return (hops, followers, follower_tokens): how likely each node is that a follower adds, given its leader.

    The followers are those of the text's own table, then those of the frozen one.
    """
    shape = HOPS, *policy.ranks_and_places
    if policy.chances:
        return np.array(policy.chances).reshape(shape)
    ranks = np.arange(shape[1])
    ranks[policy.followers :] -= policy.followers
    return np.broadcast_to(1.0 / (2.0 + ranks)[None, :, None], shape).copy()
