"""The ranking of candidates, whole or by a shortlist, and trees of differently many of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.kernels.beam import choose
from spectune.planner.records.candidates import (
    MANY,
    all_scores,
    best_candidates,
    best_tree,
    first_layer,
    next_layer,
    ragged_tree_of,
    tree_of,
)

from .toy_drafter import drafted_paths, toy_scorer


def best_by_sorting(row: list[float], count: int) -> list[int]:
    return sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]


@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 7, MANY - 1, MANY, MANY + 1, 3 * MANY]),
    st.sampled_from([1, 5, 59, 60, MANY // 4, MANY]),
    st.sampled_from([2, 40, 10**6]),
    st.floats(0.0, 1.0),
)
def test_the_best_are_those_of_a_whole_sort_ties_in_order(
    seed: int, candidates: int, count: int, levels: int, missing: float
) -> None:
    source = np.random.default_rng(seed)
    scores = (-source.integers(0, levels, (3, candidates)) / levels).astype(np.float32)
    scores[1, source.random(candidates) < missing] = -np.inf
    found = best_candidates(scores, count).tolist()
    expected = [best_by_sorting(row, count) for row in scores.tolist()]
    assert found == expected
    chosen = np.empty((3, min(count, candidates)), dtype=np.int64)
    choose(scores, chosen)
    assert chosen.tolist() == [sorted(row) for row in expected]


@pytest.mark.parametrize("drafts", [0, 1, 4, 8, 9, 20])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_tree_of_the_best_is_that_of_those_who_are_chosen(depth: int, drafts: int) -> None:
    scorer = toy_scorer(3, 4)
    layers = [first_layer(scorer, 3)]
    if depth:
        layers.append(next_layer(scorer, layers[0], best_candidates(layers[0].scores, 2), 3))
    found, expected = best_tree(layers, drafts), tree_of(layers, best_candidates(all_scores(layers), drafts))
    assert found.widths == expected.widths
    for one, other in zip(
        (found.tokens, found.parents, found.depths, found.sizes),
        (expected.tokens, expected.parents, expected.depths, expected.sizes),
        strict=True,
    ):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_ragged_tree_is_each_rows_own_tree(seed: int) -> None:
    layers = [first_layer(toy_scorer(seed, seed + 1), 3)]
    layers.append(next_layer(toy_scorer(seed, seed + 1), layers[0], best_candidates(layers[0].scores, 2), 3))
    picked = [best_candidates(np.concatenate([layer.scores for layer in layers], axis=1), count) for count in (2, 6)]
    is_chosen = np.zeros((2, 9), dtype=np.bool_)
    is_chosen[0, picked[0][0]] = is_chosen[1, picked[1][1]] = True
    ragged = ragged_tree_of(layers, is_chosen)
    alone = [tree_of(layers, chosen) for chosen in picked]
    assert ragged.sizes.tolist() == [3, 7]
    assert [drafted_paths(ragged, row) for row in (0, 1)] == [drafted_paths(alone[row], row) for row in (0, 1)]


def test_a_ragged_tree_of_nothing_is_the_root() -> None:
    layer = first_layer(toy_scorer(1, 2), 3)
    draft = ragged_tree_of([layer], np.zeros((2, 3), dtype=np.bool_))
    assert (draft.tokens.tolist(), draft.sizes.tolist()) == ([[-1], [-1]], [1, 1])


def test_what_hangs_below_a_padding_slot_is_no_candidate() -> None:
    scorer = toy_scorer(1, 2)
    layer = first_layer(scorer, 3)
    below = next_layer(scorer, layer, np.array([[0, 2], [1, -1]]), 3)
    assert np.isneginf(below.scores).tolist() == [[False] * 6, [False] * 3 + [True] * 3]
