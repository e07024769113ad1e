"""A text's suffix automaton: which end occurred before, what is copied, and the tree by counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.planner.strategies.automaton import SuffixText
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.text import TextTree

from ...support.text_oracles import Path, longest_match, slow_suffix, slow_suffix_tree

TEXTS = st.lists(st.integers(0, 2), max_size=40)
CHAINS = st.builds(
    SuffixPolicy,
    length=st.integers(1, 9),
    factor=st.integers(0, 3),
    offset=st.integers(1, 2),
    min_match=st.integers(1, 3),
    occurrence=st.sampled_from(["first", "last"]),
)
ALL_THAT_MATCHES = SuffixPolicy(length=1000, factor=1, offset=0)  # its copy is as long as the match
TREES = st.builds(
    SuffixTreePolicy,
    nodes=st.integers(2, 12),
    factor=st.integers(1, 4),
    offset=st.integers(0, 2),
    least_chance=st.sampled_from([0.0, 0.1, 0.3, 0.7]),
    min_match=st.sampled_from([1, 1, 2, 4]),
    least_score=st.sampled_from([0.0, 0.0, 0.8, 2.0]),
)


def paths_of(tree: TextTree) -> list[Path]:
    """Return every node but the root by its path."""
    paths: list[Path] = [()]
    for token, parent, depth in tree.T.tolist()[1:]:
        paths.append((*paths[parent], token))
        assert len(paths[-1]) == depth
    return paths[1:]


def copied(tokens: list[int], policy: SuffixPolicy) -> list[int]:
    """Return the chain behind a text."""
    tree = SuffixText().draft(policy, tokens)
    assert tree[1].tolist() == list(range(-1, tree.shape[1] - 1))
    return list(tree[0, 1:].tolist())


@given(TEXTS)
def test_the_match_is_the_longest_end_that_a_scan_finds_again(tokens: list[int]) -> None:
    assert len(copied(tokens, ALL_THAT_MATCHES)) == longest_match(tokens)


@given(TEXTS, CHAINS)
def test_a_chain_is_what_a_scan_finds(tokens: list[int], policy: SuffixPolicy) -> None:
    assert copied(tokens, policy) == slow_suffix(tokens, policy)


@given(TEXTS, TREES)
@settings(max_examples=60)
def test_a_tree_is_what_counting_by_scans_finds_node_for_node(tokens: list[int], policy: SuffixTreePolicy) -> None:
    assert paths_of(SuffixText().draft(policy, tokens)) == slow_suffix_tree(tokens, policy)


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=60), CHAINS, TREES)
@settings(max_examples=60)
def test_a_text_read_in_pieces_drafts_as_one_read_at_once(
    pieces: list[list[int]], chain: SuffixPolicy, tree: SuffixTreePolicy
) -> None:
    ways: tuple[SuffixPolicy | SuffixTreePolicy, ...] = (chain, tree)
    texts, tokens = (SuffixText(), SuffixText()), list[int]()
    for piece in pieces:
        tokens += piece
        at_once = [SuffixText().draft(policy, tokens).tolist() for policy in ways]
        for text, order in zip(texts, ((0, 1), (1, 0)), strict=True):
            for unread, which in zip((piece, []), order, strict=True):
                assert text.draft(ways[which], unread).tolist() == at_once[which]


def test_a_text_that_outgrows_its_room_goes_on() -> None:
    tokens = np.random.default_rng(0).integers(0, 5, 700).tolist()
    text = SuffixText()
    for token in tokens:
        match = text.draft(ALL_THAT_MATCHES, [token])
    assert text.length == 700 and match.tolist() == SuffixText().draft(ALL_THAT_MATCHES, tokens).tolist()
    assert paths_of(text.draft(SuffixTreePolicy(nodes=40, factor=9))) == slow_suffix_tree(
        tokens, SuffixTreePolicy(nodes=40, factor=9)
    )


def test_the_published_chain_is_four_tokens_for_each_that_agrees_and_one() -> None:
    once = list(range(100, 160))
    assert copied([1, 2, *once, 1, 2], SuffixPolicy()) == once[:9]  # of m = 2
    assert copied([*range(20), *once, *range(20)], SuffixPolicy()) == once[:40]


def test_the_first_occurrence_is_copied_from_or_the_last() -> None:
    tokens = [1, 2, 7, 1, 2, 8, 1, 2]
    assert copied(tokens, SuffixPolicy(length=1)) == [7]
    assert copied(tokens, SuffixPolicy(length=1, occurrence="last")) == [8]


def test_a_copy_that_reaches_the_end_goes_round_in_circles() -> None:
    assert copied([9, 1, 2, 3, 1, 2, 3], SuffixPolicy(length=8)) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_match_shorter_than_the_least_is_not_copied_from() -> None:
    assert copied([5, 3, 8, 4, 3], SuffixPolicy(min_match=2)) == []


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_nothing_is_drafted_where_nothing_repeats(tokens: list[int]) -> None:
    assert copied(tokens, SuffixPolicy()) == []
    assert SuffixText().draft(SuffixTreePolicy(), tokens).shape == (3, 1)


def test_a_tree_holds_what_followed_more_often_before_what_followed_seldom() -> None:
    tokens = [1, 5, 1, 6, 1, 5, 1, 6, 1, 5, 9, 1]
    tree = SuffixText().draft(SuffixTreePolicy(nodes=3, factor=9), tokens)
    assert paths_of(tree)[0] == (5,) and 9 not in tree[0]
    assert paths_of(tree) == slow_suffix_tree(tokens, SuffixTreePolicy(nodes=3, factor=9))


def test_a_long_repetition_of_one_token_is_looked_at_no_deeper_than_the_longest_match() -> None:
    tree = SuffixText().draft(SuffixTreePolicy(nodes=200, factor=1), [4] * 400)
    assert tree.shape == (3, 65) and set(tree[0, 1:]) == {4}


def test_ends_longer_than_are_looked_at_count_as_the_longest_of_those() -> None:
    tokens = [*range(90)] * 2
    drafted = [SuffixText().draft(SuffixTreePolicy(nodes=4, factor=4, min_match=match), tokens) for match in (64, 65)]
    assert [tree.shape[1] for tree in drafted] == [4, 1]
