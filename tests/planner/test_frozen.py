"""Cacheback's frozen table: what it counts, that it comes whole out of a plan, and the trees out of both tables."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.crossfit import EVERYWHERE
from spectune.planner.records.frozen_table import MOST_NUMBERS, FrozenTable, frozen_table, packed_table
from spectune.planner.records.recording import Recorded, Text, rows_of
from spectune.planner.search.price import textual
from spectune.planner.strategies import policy_from_json, policy_to_json
from spectune.planner.strategies.cacheback import HOPS, CachebackPolicy, calibrated, chances_of
from spectune.planner.strategies.offers import Limits
from spectune.planner.strategies.texts import TextState

from ..support.text_oracles import Path, frozen_followers, slow_cacheback
from .strategies.test_cacheback import drafted

CORPUS = [7, 1, 1, 7, 2, 2, 7, 1, 1, 9, 7, 1, 3, 9]
TABLE = frozen_table(np.array(CORPUS), leader_tokens=1, follower_tokens=2, leaders=2, followers=2)
POLICY = CachebackPolicy(leader_tokens=1, follower_tokens=2, leaders=3, followers=2, nodes=9, max_depth=4, frozen=TABLE)


def slow_table(corpus: list[int], leader: int, follower: int, leaders: int, followers: int) -> dict[Path, list[Path]]:
    """Return a table by counters and sorting, the leaders in no order."""
    windows = [tuple(corpus[at : at + leader + follower]) for at in range(len(corpus) - leader - follower + 1)]
    counts = Counter(window[:leader] for window in windows)
    kept = sorted(counts, key=lambda one: (-counts[one], one))[:leaders]
    ngrams = Counter(windows)
    return {
        one: sorted((w[leader:] for w in ngrams if w[:leader] == one), key=lambda f: (-ngrams[one + f], f))[:followers]
        for one in kept
    }


@st.composite
def policies(draw: st.DrawFn) -> CachebackPolicy:
    """Policies with both tables of any small size, with chances or none."""
    leader, span, followers, frozen_too = (draw(st.integers(1, most)) for most in (2, 3, 3, 3))
    corpus = draw(st.lists(st.integers(0, 3), min_size=leader + span, max_size=30))
    table = frozen_table(
        np.array(corpus),
        leader_tokens=leader,
        follower_tokens=span,
        leaders=draw(st.integers(1, 5)),
        followers=frozen_too,
    )
    count = HOPS * (followers + frozen_too) * span
    return CachebackPolicy(
        leader_tokens=leader,
        follower_tokens=span,
        leaders=draw(st.integers(1, 6)),
        followers=followers,
        nodes=draw(st.integers(2, 12)),
        max_depth=draw(st.integers(1, 6)),
        least_chance=draw(st.sampled_from([0.0, 0.05, 0.3])),
        chances=tuple(draw(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9]), min_size=count, max_size=count)))
        if draw(st.booleans())
        else (),
        frozen=table,
    )


@given(
    st.lists(st.integers(0, 4), min_size=5, max_size=40),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_a_table_holds_what_counters_find(corpus: list[int], leader: int, span: int, leaders: int, most: int) -> None:
    made = frozen_table(np.array(corpus), leader_tokens=leader, follower_tokens=span, leaders=leaders, followers=most)
    policy = CachebackPolicy(leader_tokens=leader, follower_tokens=span, frozen=made)
    expected = slow_table(corpus, leader, span, leaders, most)
    assert made.leaders == len(expected)
    assert {one: frozen_followers(policy, one) for one in expected} == expected


@given(st.lists(st.integers(0, 3), max_size=30), policies())
@settings(max_examples=80)
def test_a_tree_of_both_tables_is_what_dictionaries_and_a_heap_find(tokens: list[int], policy: CachebackPolicy) -> None:
    assert drafted(tokens, policy) == slow_cacheback(tokens, policy)


def test_a_text_that_has_said_nothing_yet_is_drafted_from_the_frozen_table() -> None:
    assert drafted([7], POLICY)[:2] == [(1,), (1, 1)]
    assert drafted([7], replace(POLICY, frozen=None)) == []


def test_what_the_text_said_itself_comes_first() -> None:
    tokens = [7, 3, 3, 7]
    assert drafted(tokens, POLICY)[0] == (3,)
    assert (1,) in drafted(tokens, POLICY)


def test_a_follower_of_both_tables_is_one_path() -> None:
    paths = drafted([7, 1, 1, 7], POLICY)
    assert len(set(paths)) == len(paths) and (1, 1) in paths


@given(policies())
def test_a_policy_comes_whole_out_of_its_json(policy: CachebackPolicy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


@given(st.lists(st.integers(0, 3), min_size=4, max_size=24), policies())
def test_the_replay_accepts_what_the_drafts_have_right(tokens: list[int], policy: CachebackPolicy) -> None:
    text = Text(prompt=tuple(tokens[:2]), continuation=tuple(tokens[2:]))
    found = policy.results_in([text])
    state = TextState()
    for row in range(len(text.continuation) - 1):
        now = len(text.prompt) + 1 + row
        tree = state.draft(tokens[:now], policy)
        paths = slow_cacheback(tokens[:now], policy)
        right = sum(tuple(tokens[now : now + len(path)]) == path for path in paths)
        assert (found.sizes[row], found.accepted[row]) == (1 + len(paths), right) == (tree.shape[1], right)


def test_chances_are_told_apart_by_table() -> None:
    texts = [Text(prompt=(7,), continuation=(7, 1, 7, 1, 1, 7))]
    policy = replace(
        POLICY,
        follower_tokens=1,
        frozen=frozen_table(np.array(CORPUS), leader_tokens=1, follower_tokens=1, leaders=2, followers=2),
    )
    chances = chances_of(calibrated(policy, texts, np.array([True])))
    assert chances.shape == (HOPS, 4, 1)
    # behind 7 7: own 7, then frozen 1 (right) and 2; behind 1: frozen 1 and 7 (right); behind 7: own 1 (right), 7 and
    # frozen 2; behind 1: own 7, frozen 1 (right); behind 1: own 1, 7 (right)
    assert chances[0, 0, 0] == pytest.approx((0 + 1 + 0 + 0) / (4 + 1), abs=1e-4)
    assert chances[0, 2, 0] == pytest.approx((1 + 0 + 1) / (3 + 1), abs=1e-4)


@pytest.mark.parametrize(
    "packed",
    [
        "",
        "no base64!",
        base64.b64encode(b"not deflated").decode(),
        base64.b64encode(zlib.compress(bytes(4))).decode(),
        base64.b64encode(zlib.compress(bytes(1 << 20))).decode(),
        TABLE.packed[:-8],
    ],
)
def test_a_damaged_table_is_refused(packed: str) -> None:
    with pytest.raises(PlanError, match="copy it again"):
        replace(TABLE, packed=packed)


@pytest.mark.parametrize("token", [-1, -(2**31)])
def test_a_table_of_tokens_below_0_is_refused(token: int) -> None:
    entries = TABLE.entries()
    for part in ("leaders", "followers", "counts"):
        numbers = getattr(entries, part).copy()
        numbers.flat[0] = token
        with pytest.raises(PlanError, match="copy it again"):
            packed_table(entries._replace(**{part: numbers}))


def test_sizes_that_no_plan_can_carry_are_refused_before_anything_is_unpacked() -> None:
    with pytest.raises(PlanError, match="too large"):
        FrozenTable(leader_tokens=1, follower_tokens=1, leaders=MOST_NUMBERS, followers=1, packed=TABLE.packed)
    with pytest.raises(PlanError, match="at least 1"):
        frozen_table(np.array(CORPUS), leader_tokens=1, follower_tokens=2, leaders=0, followers=2)
    with pytest.raises(PlanError, match="more text"):
        frozen_table(np.array([1, 2]), leader_tokens=1, follower_tokens=2, leaders=1, followers=2)


def test_tables_of_other_n_grams_do_not_stand_together() -> None:
    with pytest.raises(PlanError, match="alike"):
        CachebackPolicy(leader_tokens=2, follower_tokens=2, frozen=TABLE)
    with pytest.raises(PlanError, match="calibrate"):
        replace(POLICY, chances=(0.5,) * (HOPS * 2 * 2))


def test_of_equally_frequent_n_grams_the_lower_tokens_go_first() -> None:
    made = frozen_table(np.array([5, 2, 5, 1]), leader_tokens=1, follower_tokens=1, leaders=1, followers=2)
    assert [part.tolist() for part in made.entries()] == [[[5]], [2], [[[1], [2]]]]


def test_a_frozen_table_competes_behind_the_texts_own_and_calibrated_on_each_half() -> None:
    texts = [Text(prompt=(7, 1), continuation=(1, 7, 2, 2, 7, 1)) for _ in range(4)]
    entered = [
        (policy.frozen, bool(policy.chances), half)
        for policy, _, half in textual(
            Recorded(texts=tuple(texts), rows=rows_of(texts)), Limits(most_tokens=16, tables=(TABLE,))
        )
        if isinstance(policy, CachebackPolicy)
    ]
    assert {(is_learned, half) for frozen, is_learned, half in entered if frozen == TABLE} == {
        (False, EVERYWHERE),
        (True, 0),
        (True, 1),
    }
    assert {frozen for frozen, _, _ in entered} == {None, TABLE}
