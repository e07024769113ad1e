"""Trees drafted from a text: chains as arrays, and trees as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies.text import TextTree, batch_of, room_for_tree

FORK = np.array([[-1, 5, 6, 7], [-1, 0, 0, 1], [0, 1, 1, 2]])
CHAINS = [np.array([[-1, 4], [-1, 0], [0, 1]]), np.array([[-1, 4, 4, 9], [-1, 0, 1, 2], [0, 1, 2, 3]])]
TREES = [room_for_tree(0), *CHAINS, FORK]


def padded(trees: Sequence[TextTree]) -> DraftBatch:
    """Return trees side by side, padded entry by entry to the largest."""
    nodes = max(tree.shape[1] for tree in trees)
    rows = [
        [[*part, *[pad] * (nodes - len(part))] for part, pad in zip(tree, (-1, 0, 1), strict=True)] for tree in trees
    ]
    tokens, parents, depths = np.array(rows).swapaxes(0, 1)
    sizes = np.array([tree.shape[1] for tree in trees])
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=())


@pytest.mark.parametrize("trees", [[tree] for tree in TREES] + [TREES, TREES[:2], [FORK, FORK]])
def test_a_batch_is_its_trees_padded_to_the_largest(trees: list[TextTree]) -> None:
    found, expected = batch_of(trees), padded(trees)
    for field in fields(DraftBatch):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        assert np.array_equal(ours, theirs) and np.asarray(ours).dtype == np.asarray(theirs).dtype, field.name


def test_a_tree_by_itself_is_not_copied() -> None:
    assert np.shares_memory(batch_of([FORK]).tokens, FORK)
