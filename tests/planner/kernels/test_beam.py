"""The ranking of candidates, whole or by a shortlist, and trees of differently many of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.kernels.beam import best_first, hang_best
from spectune.planner.records.candidates import Candidates
from spectune.planner.records.draft import DraftBatch, Growth, Ints, answered
from spectune.planner.records.ops import MANY, NumpyOps, best_candidates

from ...support.toy_drafter import drafted_paths, toy_scorer


def two_layers(ops: NumpyOps, kept: Ints | None) -> Growth[Candidates]:
    """Grow layers of 3 children each: the root's, and those of kept candidates, by default the best two."""
    tree = yield from Candidates.below_root(ops, 3)
    yield from tree.expand(ops.best(tree.scores, 2) if kept is None else kept)
    return tree


def grown(*seeds: int, kept: Ints | None = None) -> Candidates:
    ops = NumpyOps(len(seeds))
    return answered(two_layers(ops, kept), toy_scorer(*seeds), len(seeds))


def tree_of(tree: Candidates, counts: tuple[int, ...]) -> DraftBatch:
    """Return the trees of each row's best candidates, as many as its count."""
    places = best_candidates(tree.all_scores, tree.count)
    is_real = np.arange(tree.count) < np.array(counts)[:, None]
    found: DraftBatch = tree.tree(tree.ops.marked(places, is_real, tree.count), tree.count)
    return found


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
    best_first(scores, chosen)
    assert chosen.tolist() == expected


@pytest.mark.parametrize("drafts", [0, 1, 4, 8, 9, 20])
@pytest.mark.parametrize("is_deep", [False, True])
def test_the_tree_of_the_best_is_that_of_those_who_are_chosen(is_deep: bool, drafts: int) -> None:
    tree = grown(3, 4) if is_deep else answered(Candidates.below_root(NumpyOps(2), 3), toy_scorer(3, 4), 2)
    found, expected = tree.best_tree(drafts), tree_of(tree, (min(drafts, tree.count),) * 2)
    assert found.widths == expected.widths
    for one, other in zip(
        (found.tokens, found.parents, found.depths, found.sizes),
        (expected.tokens, expected.parents, expected.depths, expected.sizes),
        strict=True,
    ):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("drafts", [1, 4, 8, 9])
def test_the_tree_of_the_best_by_one_call_is_that_of_those_who_are_chosen(drafts: int) -> None:
    tree = grown(3, 4)
    trees, tokens, parents = np.empty((3, 2, drafts + 1), dtype=np.int64), tree.tokens, tree.parents
    hang_best(tree.all_scores, tree.ops.concat(tokens), tree.ops.concat(parents), np.array(tree.starts), trees)
    expected = tree_of(tree, (drafts, drafts))
    assert [one.tolist() for one in trees] == [
        expected.tokens.tolist(),
        expected.parents.tolist(),
        expected.depths.tolist(),
    ]
    assert expected.widths == (1, 2) and expected.sizes.tolist() == [drafts + 1] * 2


@pytest.mark.parametrize("seed", range(5))
def test_a_ragged_tree_is_each_rows_own_tree(seed: int) -> None:
    tree = grown(seed, seed + 1)
    ragged, alone = tree_of(tree, (2, 6)), [tree_of(tree, (count, count)) for count in (2, 6)]
    assert ragged.sizes.tolist() == [3, 7]
    assert [drafted_paths(ragged, row) for row in (0, 1)] == [drafted_paths(alone[row], row) for row in (0, 1)]
    assert ragged.tokens[0, 3:].tolist() == [-1] * 4 and ragged.parents[0, 3:].tolist() == [0] * 4
    assert ragged.depths[0, 3:].tolist() == [1] * 4


def test_a_ragged_tree_of_nothing_is_the_root() -> None:
    draft = tree_of(grown(1, 2), (0, 0))
    assert (draft.tokens.tolist(), draft.sizes.tolist()) == ([[-1], [-1]], [1, 1])


def test_what_hangs_below_a_padding_slot_is_no_candidate() -> None:
    below = grown(1, 2, kept=np.array([[0, 2], [1, -1]]))
    assert np.array_equal(np.isneginf(below.scores), [[False] * 6, [False] * 3 + [True] * 3])
