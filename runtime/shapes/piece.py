"""The tokens of a draft tree that one forward reads: the whole tree, or one layer of it.

One tree is timed for all: the complete binary tree of n nodes, node i below (i - 1) // 2. It begins every larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..layout import Bools, Ints, ancestors, chain_sight

EARLIER_LAYERS = 2  # of a draft tree, in the cache already when a drafter reads a layer of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens after a context: their depths and what they see."""

    depths: Ints  # (n,)
    visible: Bools  # (1, n, written + n), which of the nodes behind the context each sees
    written: int = 0  # nodes behind the context that are in the cache already

    @property
    def tokens(self) -> int:
        """Tokens per sequence the forward reads."""
        return len(self.depths)

    @property
    def room(self) -> int:
        """Cache positions it needs after the context."""
        return self.written + self.tokens


def whole_tree(nodes: int) -> Piece:
    """Return a tree as a target verifies it, root included; 1 and 2 nodes are a chain."""
    places = np.arange(nodes)
    parents = np.where(places > 0, (places - 1) // 2, -1)
    depths = np.floor(np.log2(places + 1)).astype(np.int64)
    return Piece(depths=depths, visible=ancestors(parents[None]))


def chain(nodes: int) -> Piece:
    """Return a chain as a target verifies it, root included."""
    return Piece(depths=np.arange(nodes), visible=chain_sight(nodes))


def tree_layer(width: int) -> Piece:
    """Return a layer as a drafter reads it: each node sees its one ancestor in every layer above, and itself."""
    own = np.eye(width, dtype=np.bool_)
    return Piece(
        depths=np.full(width, EARLIER_LAYERS, dtype=np.int64),
        visible=np.concatenate([own] * (EARLIER_LAYERS + 1), axis=1)[None],
        written=EARLIER_LAYERS * width,
    )
