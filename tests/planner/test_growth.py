"""Growing plain, chain and static drafts, and the contract every draft keeps, padding included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.draft import Children, DraftBatch, Ints
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy

from ..support.toy_drafter import ToyDrafter, ToyScorer, drafted_paths, toy_scorer

FORK = TokenTree(parents=(-1, 0, 0, 2, 1, 2, 4, 3), ranks=(0, 0, 2, 1, 0, 0, 3, 0))


def test_a_chain_follows_the_most_likely_token() -> None:
    draft = grow(ChainPolicy(length=4), toy_scorer(1, 2), 2)
    for row, seed in enumerate((1, 2)):
        path: tuple[int, ...] = ()
        for _ in range(4):
            path = (*path, ToyDrafter(seed, vocabulary=6).best(path, 1)[0][0])
        assert draft.tokens[row].tolist() == [-1, *path]


def test_a_chain_runs_one_forward_of_one_node_per_token() -> None:
    scorer = toy_scorer(1)
    assert grow(ChainPolicy(length=3), scorer, 1).widths == tuple(scorer.widths) == (1, 1, 1)


def test_every_node_of_a_static_tree_is_its_rank_after_its_own_path() -> None:
    draft = grow(StaticPolicy(tree=FORK), toy_scorer(3, 4, 5), 3)
    for row, seed in enumerate((3, 4, 5)):
        drafter, found = ToyDrafter(seed, vocabulary=6), drafted_paths(draft, row)
        for node in range(1, FORK.size):
            rank = FORK.ranks[node]
            assert draft.tokens[row, node] == drafter.best(found[FORK.parents[node]], rank + 1)[rank][0]


def test_a_static_draft_keeps_the_shape_of_its_tree() -> None:
    draft = grow(StaticPolicy(tree=FORK), toy_scorer(3, 4), 2)
    assert draft.parents.tolist() == [list(FORK.parents)] * 2
    assert draft.depths.tolist() == [list(FORK.depths)] * 2


def test_a_static_tree_expands_only_nodes_with_children() -> None:
    scorer = toy_scorer(3)
    assert grow(StaticPolicy(tree=FORK), scorer, 1).widths == tuple(scorer.widths) == (1, 2, 2)


def test_a_static_tree_asks_for_no_child_it_does_not_draft() -> None:
    scorer = toy_scorer(3)
    grow(StaticPolicy(tree=FORK), scorer, 1)
    assert scorer.children == [3, 2, 4]  # the highest rank of each level, counted from one


def test_a_static_tree_of_ranks_that_a_drafter_does_not_have_is_refused() -> None:
    with pytest.raises(PlanError, match="needs 3 children of a node and the drafter has 2 tokens"):
        grow(StaticPolicy(tree=FORK), toy_scorer(3, vocabulary=2), 1)


def test_a_static_chain_equals_the_chain() -> None:
    tree = TokenTree(parents=(-1, 0, 1, 2), ranks=(0, 0, 0, 0))
    static, chain = grow(StaticPolicy(tree=tree), toy_scorer(9), 1), grow(ChainPolicy(length=3), toy_scorer(9), 1)
    assert static.tokens.tolist() == chain.tokens.tolist()


def test_plain_decoding_never_asks_the_drafter() -> None:
    scorer = toy_scorer(1, 2)
    draft = grow(PlainPolicy(), scorer, 2)
    assert (draft.tokens.tolist(), draft.widths, scorer.widths) == ([[-1], [-1]], (), [])


def test_a_lookup_is_not_grown_with_a_drafter() -> None:
    with pytest.raises(PlanError, match="one scorer"):
        grow(LookupPolicy(length=4), toy_scorer(1), 1)


def test_a_scorer_of_another_batch_is_refused() -> None:
    with pytest.raises(PlanError, match="serves 2 sequences, expected 3"):
        grow(ChainPolicy(length=2), toy_scorer(1, 2), 3)


def test_children_of_two_shapes_are_refused() -> None:
    with pytest.raises(PlanError, match="one shape"):
        Children(tokens=np.zeros((1, 2, 3), np.int64), log_probs=np.zeros((1, 2, 2), np.float32))


def test_a_draft_of_uneven_rows_is_refused() -> None:
    nodes = np.zeros((2, 3), np.int64)
    with pytest.raises(PlanError, match="pad the rows"):
        DraftBatch(tokens=nodes, parents=nodes, depths=nodes, sizes=np.zeros(3, np.int64), widths=())


@st.composite
def static_policies(draw: st.DrawFn) -> StaticPolicy:
    size = draw(st.integers(2, 12))
    parents = [-1, *(draw(st.integers(max(0, node - 4), node - 1)) for node in range(1, size))]
    ranks = [0, *(parents[1:node].count(parents[node]) for node in range(1, size))]
    return StaticPolicy(tree=TokenTree(parents=tuple(parents), ranks=tuple(ranks)))


@st.composite
def cast_policies(draw: st.DrawFn) -> CastPolicy:
    threshold, cost = st.floats(0.0, 8.0), st.floats(0.01, 5.0)
    width, tokens = draw(st.integers(1, 4)), draw(st.integers(2, 16))
    return CastPolicy(
        breadth=draw(threshold),
        depth=draw(threshold),
        rerank=draw(threshold),
        max_width=width,
        max_depth=draw(st.integers(1, 4)),
        max_verify_tokens=tokens,
        ratio_window=draw(st.integers(1, 3)),
        draft_cost_ms=(0.0, *(draw(cost) for _ in range(width))),
        verify_cost_ms=(0.0, *(draw(cost) for _ in range(tokens))),
    )


POLICIES = st.one_of(
    st.builds(ChainPolicy, length=st.integers(1, 5)),
    st.builds(ConfidentChainPolicy, length=st.integers(1, 5), confidence=st.floats(0.0, 1.0)),
    static_policies(),
    st.builds(
        TalonPolicy,
        nodes=st.integers(2, 20),
        gate=st.floats(0.001, 1.0),
        top_k=st.integers(1, 4),
        children=st.integers(4, 12),
        max_depth=st.integers(1, 6),
    ),
    st.builds(
        OptTreePolicy,
        nodes=st.integers(1, 20),
        least_gain=st.floats(-0.1, 1.0),
        max_depth=st.integers(1, 4),
        children=st.integers(1, 6),
    ),
    st.builds(Eagle2Policy, verify_tokens=st.integers(2, 20), depth=st.integers(0, 3), top_k=st.integers(1, 4)),
    cast_policies(),
)
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=3)
LEVELS = st.sampled_from([None, 1, 2])  # few levels make many equal scores


@given(POLICIES, SEEDS, LEVELS)
def test_parents_stand_one_level_above_and_before_their_children(
    policy: TreePolicy, seeds: list[int], levels: int | None
) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=12, levels=levels), len(seeds))
    assert (draft.parents[:, 0] == -1).all() and (draft.depths[:, 0] == 0).all()
    for row, size in enumerate(draft.sizes.tolist()):
        for node in range(1, size):
            parent = int(draft.parents[row, node])
            assert 0 <= parent < node
            assert draft.depths[row, node] == draft.depths[row, parent] + 1


@given(POLICIES, SEEDS, LEVELS)
def test_no_path_is_drafted_twice(policy: TreePolicy, seeds: list[int], levels: int | None) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=12, levels=levels), len(seeds))
    for row, size in enumerate(draft.sizes.tolist()):
        assert len(set(drafted_paths(draft, row))) == size


@given(POLICIES, SEEDS, LEVELS)
def test_every_drafted_path_is_one_the_drafter_proposes(
    policy: TreePolicy, seeds: list[int], levels: int | None
) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=12, levels=levels), len(seeds))
    for row, seed in enumerate(seeds):
        drafter = ToyDrafter(seed, vocabulary=12, levels=levels)
        for path in drafted_paths(draft, row)[1:]:
            assert path[-1] in [token for token, _ in drafter.best(path[:-1], 12)]


@given(POLICIES, SEEDS)
def test_no_draft_exceeds_what_its_policy_promises(policy: TreePolicy, seeds: list[int]) -> None:
    scorer = toy_scorer(*seeds, vocabulary=12)
    draft = grow(policy, scorer, len(seeds))
    assert draft.sizes.max() <= policy.max_verify_tokens
    assert draft.widths == tuple(scorer.widths) and len(draft.widths) <= policy.draft_forwards
    assert sum(draft.widths[1:]) <= policy.draft_room(len(seeds)) <= policy.draft_room()


@given(POLICIES, SEEDS, LEVELS)
def test_what_pads_a_row_has_no_token_and_hangs_on_the_root(
    policy: TreePolicy, seeds: list[int], levels: int | None
) -> None:
    draft = grow(policy, toy_scorer(*seeds, vocabulary=12, levels=levels), len(seeds))
    is_padding = np.arange(draft.tokens.shape[1]) >= draft.sizes[:, None]
    columns = [array[is_padding].tolist() for array in (draft.tokens, draft.parents, draft.depths)]
    assert set(zip(*columns, strict=True)) <= {(-1, 0, 1)}
    assert draft.tokens.shape[1] == draft.sizes.max()


@given(POLICIES, st.lists(st.integers(0, 10**6), min_size=2, max_size=3), LEVELS)
def test_what_is_answered_in_a_padding_slot_changes_no_tree(
    policy: TreePolicy, seeds: list[int], levels: int | None
) -> None:
    told, garbled = toy_scorer(*seeds, vocabulary=12, levels=levels), GarblingScorer(seeds, levels)
    draft, same = grow(policy, told, len(seeds)), grow(policy, garbled, len(seeds))
    for field in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(draft, field), getattr(same, field))
    assert draft.widths == same.widths


class GarblingScorer(ToyScorer):
    """A ToyScorer that answers in padding slots what no other slot would answer: sure, and of no token."""

    def __init__(self, seeds: list[int], levels: int | None):
        super().__init__([ToyDrafter(seed, 12, levels) for seed in seeds])

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        answer = super().expand(parents, ranks, children)
        is_padding = (parents < 0)[:, :, None]
        return Children(
            tokens=np.where(is_padding, 99, answer.tokens), log_probs=np.where(is_padding, 0.0, answer.log_probs)
        )
