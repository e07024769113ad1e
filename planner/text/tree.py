"""A tree drafted from a text: (3, nodes) tokens, parents and depths, the root first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..growth.draft import ROOT_TOKEN, DraftBatch, Ints

TextTree: TypeAlias = Ints


def room_for_tree(nodes: int) -> TextTree:
    """Return a tree with its root alone and room for so many nodes behind it."""
    tree = np.zeros((3, nodes + 1), dtype=np.int64)
    tree[:2, 0] = ROOT_TOKEN, -1
    return tree


def batch_of(trees: Sequence[TextTree]) -> DraftBatch:
    """Return trees as one batch, padded to the largest; a tree by itself is not copied."""
    sizes = np.array([tree.shape[1] for tree in trees], dtype=np.int64)
    if len(trees) == 1:
        tree = trees[0]
        return DraftBatch(tokens=tree[:1], parents=tree[1:2], depths=tree[2:], sizes=sizes, widths=())
    shape = (len(trees), int(sizes.max()))
    tokens, parents = np.full(shape, ROOT_TOKEN, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    depths = np.ones(shape, dtype=np.int64)
    for row, tree in enumerate(trees):
        tokens[row, : tree.shape[1]], parents[row, : tree.shape[1]], depths[row, : tree.shape[1]] = tree
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=())
