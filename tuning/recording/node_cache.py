"""The trees of many positions of one text, every node expanded once.

Below the target's own token, a position's tree is the tree of the next one: the committed text is the same, and a
model's answer is a function of it. So the child that the target takes *is* the next position's root. A head also reads
which of its features are the target's, so its trees are not joined.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...planner.records.draft import Children, Ints, Scores

UNKNOWN = -1


class TreeDrafter(Protocol):
    """Answers behind nodes of trees that hang off numbered rows, the positions of a text."""

    def expand(self, parents: Ints, tokens: Ints) -> Children:
        """Return new nodes' best children, (1, nodes, children); parents are rows or nodes, numbered as they came."""


class NodeCache:
    """Every node of one text expanded so far, rows first: best next tokens, and conditional log_probs, descending."""

    def __init__(self, drafter: TreeDrafter, roots: Children, next_roots: Ints, next_ranks: Ints) -> None:
        """Start with the roots, (1, rows, children), of a drafter that already holds the rows.

        `next_roots` are rows whose next position is the next row, `next_ranks` the child that is its root.
        """
        self._drafter = drafter
        self.tokens: Ints = roots.tokens[0]
        self.log_probs: Scores = roots.log_probs[0]
        self._child: NDArray[np.int64] = np.full(self.tokens.shape, UNKNOWN)
        self._child[next_roots, next_ranks] = next_roots + 1

    @property
    def children(self) -> int:
        """Best next tokens per node."""
        return int(self.tokens.shape[1])

    def answers(self, nodes: Ints, count: int) -> Children:
        """Return the best `count` children of nodes (rows, width); -1 has none that is possible."""
        is_none = (nodes < 0)[:, :, None]
        log_probs = np.where(is_none, np.float32(-np.inf), self.log_probs[nodes, :count])
        return Children(tokens=self.tokens[nodes, :count], log_probs=log_probs)

    def nodes(self, parents: Ints, ranks: Ints) -> Ints:
        """Return the children (any,) of nodes, expanding those that are new."""
        is_new = self._child[parents, ranks] == UNKNOWN
        fresh = np.unique(parents[is_new] * self.children + ranks[is_new])
        if len(fresh):
            self._enter(fresh // self.children, fresh % self.children)
        found: Ints = self._child[parents, ranks]
        return found

    def _enter(self, parents: Ints, ranks: Ints) -> None:
        below = self._drafter.expand(parents, self.tokens[parents, ranks])
        self._child[parents, ranks] = len(self.tokens) + np.arange(len(parents))
        self.tokens = np.concatenate([self.tokens, below.tokens[0]])
        self.log_probs = np.concatenate([self.log_probs, below.log_probs[0]])
        self._child = np.concatenate([self._child, np.full(below.tokens[0].shape, UNKNOWN)])
