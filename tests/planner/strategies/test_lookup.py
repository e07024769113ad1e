"""Prompt lookup: which occurrence decides and where the copy ends."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from spectune.errors import PlanError
from spectune.planner.strategies.lookup import FIRST_ROOM, LookupPolicy, LookupText, Occurrence, find_continuation


def test_the_longest_ngram_goes_first() -> None:
    text = [1, 2, 3, 7, 9, 3, 8, 1, 2, 3]  # 3 was last followed by 8, but 1 2 3 by 7
    assert find_continuation(text, length=1) == [7]


def test_the_most_recent_occurrence_decides() -> None:
    assert find_continuation([1, 2, 7, 1, 2, 8, 1, 2], length=1) == [8]


def test_the_first_occurrence_decides_where_that_is_asked_for() -> None:
    assert find_continuation([1, 2, 7, 1, 2, 8, 1, 2], length=1, occurrence="first") == [7]


def test_a_shorter_ngram_is_tried_when_the_longer_is_new() -> None:
    assert find_continuation([5, 3, 8, 4, 3], length=2) == [8, 4]


def test_ngrams_shorter_than_the_least_are_not_tried() -> None:
    assert find_continuation([5, 3, 8, 4, 3], length=2, min_ngram=2) == []


def test_the_copy_ends_with_the_text() -> None:
    assert find_continuation([6, 1, 2, 6], length=10) == [1, 2, 6]


def test_an_occurrence_may_overlap_the_suffix() -> None:
    assert find_continuation([4, 4, 4, 4], length=5) == [4]
    assert find_continuation([4, 4, 4, 4], length=5, max_ngram=1, occurrence="first") == [4, 4, 4]


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3]])
def test_nothing_is_drafted_when_nothing_repeats(text: list[int]) -> None:
    assert find_continuation(text, length=4) == []


@pytest.mark.parametrize(("length", "max_ngram", "min_ngram"), [(0, 3, 1), (4, 1, 2), (4, 3, 0)])
def test_an_argument_out_of_range_is_refused(length: int, max_ngram: int, min_ngram: int) -> None:
    with pytest.raises(PlanError):
        find_continuation([1, 2, 1], length, max_ngram, min_ngram)


def slow_lookup(text: list[int], length: int, max_ngram: int, min_ngram: int, occurrence: Occurrence) -> list[int]:
    """Try every n-gram at every place, longest first, from the asked end on."""
    for ngram in range(max_ngram, min_ngram - 1, -1):
        starts = range(max(0, len(text) - ngram))
        for start in reversed(starts) if occurrence == "last" else starts:
            if text[start : start + ngram] == text[-ngram:]:
                return text[start + ngram : start + ngram + length]
    return []


@given(
    st.lists(st.integers(0, 2), max_size=25),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(get_args(Occurrence)),
)
def test_lookup_equals_the_slow_search(
    text: list[int], length: int, min_ngram: int, more: int, occurrence: Occurrence
) -> None:
    truth = slow_lookup(text, length, min_ngram + more, min_ngram, occurrence)
    assert find_continuation(text, length, min_ngram + more, min_ngram, occurrence) == truth


@given(st.lists(st.integers(0, 2), min_size=1, max_size=25), st.integers(1, 5), st.integers(1, 4))
def test_the_first_occurrence_is_what_transformers_copies_behind(text: list[int], length: int, ngram: int) -> None:
    theirs = PromptLookupCandidateGenerator(num_output_tokens=length, max_matching_ngram_size=ngram, max_length=1000)
    candidates, _ = theirs.get_candidates(torch.LongTensor([text]))
    assert find_continuation(text, length, ngram, occurrence="first") == candidates[0, len(text) :].tolist()


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(get_args(Occurrence)),
)
def test_a_text_that_grows_is_searched_as_a_whole_one(
    pieces: list[list[int]], length: int, min_ngram: int, more: int, occurrence: Occurrence
) -> None:
    policy = LookupPolicy(length=length, max_ngram=min_ngram + more, min_ngram=min_ngram, occurrence=occurrence)
    text, tokens = LookupText(), list[int]()
    for piece in pieces:
        tokens += piece
        drafted = text.draft(policy, piece)
        found = slow_lookup(tokens, length, min_ngram + more, min_ngram, occurrence)
        assert drafted.tolist() == chain_of(found) and drafted.dtype == np.int64
    assert text.length == len(tokens)


OCCURRENCES: tuple[Occurrence, Occurrence] = ("last", "first")


def chain_of(tokens: list[int]) -> list[list[int]]:
    count = len(tokens)
    return [[-1, *tokens], list(range(-1, count)), list(range(count + 1))]


def test_a_text_outgrows_its_first_room_and_two_searches_share_it() -> None:
    body = np.random.default_rng(4).integers(0, 40, size=3 * FIRST_ROOM).tolist()
    text, now = LookupText(), 0
    for step in (1, FIRST_ROOM - 2, 1, 1, FIRST_ROOM, 5):
        fresh, now = body[now : now + step], now + step
        for longest, occurrence in zip((1, 3), OCCURRENCES, strict=True):
            policy = LookupPolicy(length=6, max_ngram=longest, occurrence=occurrence)
            expected = find_continuation(body[:now], 6, longest, 1, occurrence)
            assert text.draft(policy, fresh).tolist() == chain_of(expected)
            fresh = []


def test_a_chain_stays_what_it_was_when_the_text_grows() -> None:
    text, policy = LookupText(), LookupPolicy(length=4)
    chain = text.draft(policy, [1, 2, 3, 1, 2])
    before = chain.tolist()
    text.draft(policy, [9, 9, 9])
    assert chain.tolist() == before == chain_of([3, 1, 2])


def test_an_engine_s_own_search_is_refused() -> None:
    with pytest.raises(PlanError, match="remembers other texts"):
        LookupText().draft(LookupPolicy(length=4, occurrence="mapped"), [1, 2, 1])
