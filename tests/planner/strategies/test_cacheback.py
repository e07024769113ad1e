"""Cacheback's table of n-grams and the trees out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.planner.records.recording import Text
from spectune.planner.strategies.cacheback import HOPS, CachebackPolicy, CachebackText, calibrated, chances_of

from ...support.text_oracles import Path, SlowTable, slow_cacheback
from .test_suffix import paths_of

SMALL = CachebackPolicy(leader_tokens=1, follower_tokens=2, leaders=3, followers=2, nodes=9, max_depth=4)


@st.composite
def policies(draw: st.DrawFn) -> CachebackPolicy:
    """Tables of any small size, with chances that fall along a follower or do not, or none."""
    span, followers = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    count = HOPS * followers * span
    return CachebackPolicy(
        leader_tokens=draw(st.integers(1, 3)),
        follower_tokens=span,
        leaders=draw(st.integers(1, 6)),
        followers=followers,
        nodes=draw(st.integers(2, 12)),
        max_depth=draw(st.integers(1, 6)),
        least_chance=draw(st.sampled_from([0.0, 0.05, 0.3])),
        chances=tuple(draw(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9]), min_size=count, max_size=count)))
        if draw(st.booleans())
        else (),
    )


def text_of(tokens: list[int], policy: CachebackPolicy) -> CachebackText:
    """Return the text's table, read at once."""
    text = CachebackText(policy)
    text.draft(policy, tokens)
    return text


def drafted(tokens: list[int], policy: CachebackPolicy) -> list[Path]:
    """Return the nodes drafted behind a text."""
    return paths_of(text_of(tokens, policy).draft(policy))


@given(st.lists(st.integers(0, 3), max_size=40), policies())
@settings(max_examples=80)
def test_a_tree_is_what_ordered_dictionaries_and_a_heap_find(tokens: list[int], policy: CachebackPolicy) -> None:
    assert drafted(tokens, policy) == slow_cacheback(tokens, policy)


@given(st.lists(st.lists(st.integers(0, 3), max_size=7), max_size=12), policies())
def test_tokens_one_by_one_and_in_pieces_fill_the_same_table(pieces: list[list[int]], policy: CachebackPolicy) -> None:
    tokens = [token for piece in pieces for token in piece]
    text = text_of([], policy)
    for piece in pieces:
        text.draft(policy, piece)
    one_by_one = text_of([], policy)
    for token in tokens:
        one_by_one.draft(policy, [token])
    assert paths_of(text.draft(policy)) == paths_of(one_by_one.draft(policy)) == drafted(tokens, policy)


@given(st.lists(st.integers(0, 3), max_size=40), policies())
def test_siblings_are_different_tokens(tokens: list[int], policy: CachebackPolicy) -> None:
    paths = drafted(tokens, policy)
    assert len(set(paths)) == len(paths) and all(len(path) <= policy.max_depth for path in paths)


def test_the_follower_seen_last_is_the_first() -> None:
    tokens = [7, 1, 1, 7, 2, 2, 7, 1, 1, 7]
    assert drafted(tokens, SMALL)[0] == (1,)
    assert drafted([7, 1, 1, 7, 2, 2, 7], SMALL)[0] == (2,)


def test_a_full_leader_forgets_the_follower_not_seen_for_longest() -> None:
    tokens = [7, 1, 1, 7, 2, 2, 7, 1, 1, 7, 3, 3, 7]  # 2 2 was seen before 1 1 was seen again
    firsts = {path[0] for path in drafted(tokens, SMALL)}
    assert firsts == {1, 3}


def test_a_full_table_forgets_the_leader_not_seen_for_longest() -> None:
    table = SlowTable([1, 2, 3, 4, 1, 2, 5, 6], SMALL)
    assert set(table.leaders) == {(4,), (1,), (2,)}
    assert drafted([1, 2, 3, 4, 1, 2, 5, 6, 3], SMALL) == []
    assert drafted([1, 2, 3, 4, 1, 2, 5, 6, 1], SMALL)[:2] == [(2,), (2, 5)]


def test_looking_up_leaves_recency_as_it_is() -> None:
    text = text_of([7, 1, 1, 7, 2, 2, 7], SMALL)
    first = text.draft(SMALL).tolist()
    assert all(text.draft(SMALL).tolist() == first for _ in range(5))


@pytest.mark.parametrize("place", range(1, 8))
def test_the_second_half_of_a_text_said_twice_is_proposed_word_for_word(place: int) -> None:
    half, policy = list(range(20, 32)), CachebackPolicy(follower_tokens=3, nodes=4)
    ahead = tuple(half[place : place + 3])
    assert drafted([*half, *half[:place]], policy) == [ahead[:1], ahead[:2], ahead]


def test_behind_the_end_of_a_follower_stand_its_own_followers() -> None:
    half = list(range(20, 32))
    assert max(drafted([*half, 20], CachebackPolicy(nodes=30)), key=len) == tuple(half[1:7])


def test_chances_are_shares_of_the_nodes_that_followers_add() -> None:
    policy = CachebackPolicy(leader_tokens=1, follower_tokens=1, followers=2)
    texts = [Text(prompt=(1, 2, 1, 3), continuation=(1, 3, 1, 2, 1, 3))]
    found = chances_of(calibrated(policy, texts, np.array([True])))
    # positions with a follower to look up: behind 1 (3, then 2), behind 3 (1), behind 1 (3, 2), behind 2 (1), behind 1
    assert found[0, 0, 0] == pytest.approx((1 + 1 + 0 + 1 + 0) / (5 + 1), abs=1e-4)
    assert found[0, 1, 0] == pytest.approx((0 + 1 + 1) / (3 + 1), abs=1e-4)


def test_texts_that_were_not_chosen_tell_nothing() -> None:
    texts = [Text(prompt=(1, 2), continuation=(1, 2, 1, 2)), Text(prompt=(3, 4), continuation=(5, 3, 6, 3))]
    both = [calibrated(CachebackPolicy(), [texts[0], other], np.array([True, False])) for other in texts]
    assert both[0] == both[1]
