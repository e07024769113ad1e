"""A tree drafted from a text: (3, nodes) tokens, parents and depths, the root first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..records.draft import ROOT_TOKEN, DraftBatch, Ints

TextTree: TypeAlias = Ints

PADDING = np.array([-1, 0, 1]).reshape(3, 1, 1)  # token, parent and depth, as a DraftBatch has them


def room_for_tree(nodes: int) -> TextTree:
    """Return a tree with its root alone and room for so many nodes behind it."""
    tree = np.zeros((3, nodes + 1), dtype=np.int64)
    tree[:2, 0] = ROOT_TOKEN, -1
    return tree


def batch_of(trees: Sequence[TextTree]) -> DraftBatch:
    """Return trees as one batch, padded to the largest; a tree by itself is not copied."""
    counts = [tree.shape[1] for tree in trees]
    sizes = np.array(counts, dtype=np.int64)
    if len(trees) == 1:
        tree = trees[0]
        return DraftBatch(tokens=tree[:1], parents=tree[1:2], depths=tree[2:], sizes=sizes, widths=())
    padded = np.empty((3, len(trees), max(counts)), dtype=np.int64)
    padded[:] = PADDING
    for row, (tree, count) in enumerate(zip(trees, counts, strict=True)):
        padded[:, row, :count] = tree
    return DraftBatch(tokens=padded[0], parents=padded[1], depths=padded[2], sizes=sizes, widths=())
