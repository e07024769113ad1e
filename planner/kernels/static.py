"""Static trees, filled level by level."""

from __future__ import annotations

from .arrays import Ints
from .compiled import compiled


@compiled
def fill(children: Ints, picks: Ints, tokens: Ints) -> None:
    """Write the tokens of a level's nodes into their trees.

    Args:
        children: (batch, slots, children), tokens proposed behind the level's inner nodes.
        picks: (3, nodes), the slot and the rank of each node below them, and its place in the tree.
        tokens: (batch, nodes of the tree), written.
    """
    for row in range(len(tokens)):
        for node in range(picks.shape[1]):
            tokens[row, picks[2, node]] = children[row, picks[0, node], picks[1, node]]
