"""Trees grown as tensors are, node for node, those that the planner's reference grows from the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.growth.draft import DeviceDraft
from spectune.runtime.growth.grow import grow_on_device

from ...support.drawn_policies import DRAWN
from ...support.toy_device import DeviceToyScorer, RestrictedScorer
from ...support.toy_drafter import toy_scorer

SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)
LEVELS = st.sampled_from([None, 1, 2])  # few levels make many equal scores
FLOORS = st.sampled_from([None, -1e30, -np.inf])  # of tokens that sampling settings leave out


def both(
    policy: TreePolicy, seeds: list[int], levels: int | None, floor: float | None, *, vocabulary: int, is_told: bool
) -> tuple[DeviceDraft, DraftBatch]:
    """Grow a policy's trees as tensors, and by the planner."""
    reference, toy = (RestrictedScorer(seeds, vocabulary=vocabulary, levels=levels, floor=floor) for _ in range(2))
    drafted = grow_on_device(policy, DeviceToyScorer(toy, is_told=is_told), len(seeds))
    return drafted, grow(policy, reference, len(seeds))


def assert_same_trees(draft: DraftBatch, reference: DraftBatch) -> None:
    for field in ("tokens", "parents", "depths", "sizes"):
        mine, other = getattr(draft, field), getattr(reference, field)
        assert mine.dtype == other.dtype and np.array_equal(mine, other), field


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=60)
@given(st.data(), SEEDS, LEVELS, FLOORS, st.booleans())
def test_trees_grown_as_tensors_are_the_planners(
    kind: str, data: st.DataObject, seeds: list[int], levels: int | None, floor: float | None, is_told: bool
) -> None:
    policy = data.draw(DRAWN[kind])
    drafted, reference = both(policy, seeds, levels, floor, vocabulary=12, is_told=is_told)
    assert_same_trees(drafted.host(), reference)


@pytest.mark.parametrize("kind", [kind for kind in DRAWN if kind != "static"])
@settings(max_examples=20)
@given(st.data(), SEEDS, LEVELS, st.integers(1, 3), st.booleans())
def test_a_vocabulary_smaller_than_what_is_asked_for_changes_nothing_of_it(
    kind: str, data: st.DataObject, seeds: list[int], levels: int | None, vocabulary: int, is_told: bool
) -> None:
    policy = data.draw(DRAWN[kind])
    drafted, reference = both(policy, seeds, levels, None, vocabulary=vocabulary, is_told=is_told)
    assert_same_trees(drafted.host(), reference)


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=20)
@given(st.data(), SEEDS, LEVELS)
def test_the_shapes_of_a_draft_do_not_depend_on_scores(
    kind: str, data: st.DataObject, seeds: list[int], levels: int | None
) -> None:
    policy = data.draw(DRAWN[kind])
    drafts = [
        both(policy, some, levels, None, vocabulary=12, is_told=False)[0]
        for some in (seeds, [seed + 1 for seed in seeds])
    ]
    assert len({draft.tokens.shape for draft in drafts}) == len({draft.widths for draft in drafts}) == 1
    assert drafts[0].tokens.shape[1] <= policy.max_verify_tokens


@pytest.mark.parametrize("kind", ["chain", "eagle2", "static"])
@settings(max_examples=20)
@given(st.data(), SEEDS)
def test_policies_that_never_stop_early_run_the_planners_forwards(
    kind: str, data: st.DataObject, seeds: list[int]
) -> None:
    drafted, reference = both(data.draw(DRAWN[kind]), seeds, None, None, vocabulary=12, is_told=False)
    assert drafted.widths == reference.widths


@pytest.mark.parametrize("kind", ["confident-chain", "talon", "opt-tree", "cast"])
@settings(max_examples=20)
@given(st.data(), SEEDS, LEVELS)
def test_a_host_that_is_told_at_once_runs_no_forward_in_vain(
    kind: str, data: st.DataObject, seeds: list[int], levels: int | None
) -> None:
    drafted, reference = both(data.draw(DRAWN[kind]), seeds, levels, None, vocabulary=12, is_told=True)
    assert len(drafted.widths) == len(reference.widths)
    assert all(mine >= other for mine, other in zip(drafted.widths, reference.widths, strict=True))


def test_plain_decoding_never_asks_the_drafter() -> None:
    scorer = toy_scorer(1, 2)
    draft = grow_on_device(PlainPolicy(), DeviceToyScorer(scorer, is_told=False), 2)
    assert_same_trees(draft.host(), grow(PlainPolicy(), toy_scorer(1, 2), 2))
    assert (draft.widths, scorer.widths) == ((), [])


def test_a_lookup_is_not_grown_with_a_drafter() -> None:
    with pytest.raises(PlanError, match="one scorer"):
        grow_on_device(LookupPolicy(length=4), DeviceToyScorer(toy_scorer(1), is_told=False), 1)


def test_a_scorer_of_another_batch_is_refused() -> None:
    with pytest.raises(PlanError, match="serves 2 sequences, expected 3"):
        grow_on_device(ChainPolicy(length=2), DeviceToyScorer(toy_scorer(1, 2), is_told=False), 3)


def test_a_static_tree_of_ranks_beyond_the_vocabulary_is_refused() -> None:
    policy = StaticPolicy(tree=TokenTree(parents=(-1, 0), ranks=(0, 7)))
    with pytest.raises(PlanError, match="needs 8 children of a node and the drafter has 6 tokens"):
        grow_on_device(policy, DeviceToyScorer(toy_scorer(1, vocabulary=6), is_told=False), 1)


@settings(max_examples=20)
@given(SEEDS, st.floats(0.5, 3.0), st.integers(0, 3))
def test_cast_verifies_what_is_never_drawn_before_what_the_batch_pruned(
    seeds: list[int], breadth: float, extra: int
) -> None:
    policy = CastPolicy(
        breadth=breadth,
        depth=0.0,
        rerank=0.0,  # the tree takes all it can
        max_width=4,
        max_depth=4,
        max_verify_tokens=40,
        ratio_window=1,
        draft_cost_ms=(0.0, 0.5, 0.6, 0.8, 1.1),
        verify_cost_ms=(0.0, *(1.0 for _ in range(40))),
    )
    drafted, reference = both(policy, seeds, None, -np.inf, vocabulary=4 + extra, is_told=False)
    assert_same_trees(drafted.host(), reference)


@pytest.mark.parametrize("kind", [kind for kind in DRAWN if kind != "talon"])  # whose layout is compact
@settings(max_examples=20)
@given(st.data(), SEEDS)
def test_no_more_nodes_are_fed_than_a_cache_has_room_for(kind: str, data: st.DataObject, seeds: list[int]) -> None:
    policy = data.draw(DRAWN[kind])
    drafted, _ = both(policy, seeds, None, None, vocabulary=12, is_told=False)
    assert sum(drafted.widths[1:]) <= policy.draft_room(len(seeds))
