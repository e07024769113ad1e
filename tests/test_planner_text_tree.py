"""Trees drafted from a text: chains as arrays, and trees as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from spectune.planner.growth.draft import DraftBatch, Ints
from spectune.planner.text.tree import TextTree, batch_of, chain_tree, room_for_tree

FORK = np.array([[-1, 5, 6, 7], [-1, 0, 0, 1], [0, 1, 1, 2]])
TREES = [room_for_tree(0), chain_tree([4]), chain_tree([4, 4, 9]), FORK]


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


@pytest.mark.parametrize("tokens", [[3, 1, 4], (3, 1, 4), np.array([3, 1, 4]), np.array([3, 1, 4], dtype=np.int32)])
def test_a_chain_stands_behind_its_root_whatever_holds_its_tokens(tokens: Sequence[int] | Ints) -> None:
    chain = chain_tree(tokens)
    assert chain.tolist() == [[-1, 3, 1, 4], [-1, 0, 1, 2], [0, 1, 2, 3]] and chain.dtype == np.int64


@pytest.mark.parametrize("nothing", [(), [], np.empty(0, dtype=np.int64)])
def test_a_chain_of_nothing_is_a_root_alone(nothing: Sequence[int] | Ints) -> None:
    assert chain_tree(nothing).tolist() == room_for_tree(0).tolist() == [[-1], [-1], [0]]


def test_a_chain_does_not_change_with_the_text_it_was_copied_from() -> None:
    text = np.array([3, 1, 4])
    chain = chain_tree(text)
    text[:] = 0
    assert chain[0].tolist() == [-1, 3, 1, 4]
