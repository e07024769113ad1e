"""Lookup by what a server remembers, against the search written down word for word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.engines.choice import source_of
from spectune.planner.engines.mapped_ngrams import NgramMap, mapped_walk
from spectune.planner.records.recording import Text
from spectune.planner.strategies.lookup import LookupPolicy, find_continuation
from spectune.planner.strategies.naming import LOOKUP
from spectune.planner.strategies.texts import TextState


class SearchedMap:
    """The same memory as lists that are searched from end to end."""

    def __init__(self, ngram: int, length: int) -> None:
        self.ngram, self.length = ngram, length
        self.entered: list[tuple[tuple[int, ...], int]] = []
        self.keys: list[list[int]] = []  # place, accepted
        self.asked: list[int] | None = None
        self.prompt = self.newest = self.until = 0

    def begin(self, prompt: Sequence[int]) -> None:
        size = len(prompt)
        kept = self.prompt if self.prompt <= size else max(size - self.ngram - self.length, 0)
        if size < self.newest:
            self.entered = [entry for entry in self.entered if entry[1] < kept]
            self.keys = [key for key in self.keys if key[0] < kept]
            self.until = max(kept - 1, 0)
        self.prompt = self.newest = size

    def draft(self, known: Sequence[int]) -> list[int]:
        n, m, history = self.ngram, self.length, list(known[:-1])
        size, gram = len(history), tuple(known[len(known) - n :])
        self.asked = None
        if size < 2 * n + m:
            return []
        self.newest, last = size, size - n - m - 1
        place = next((at for entry, at in self.entered if entry == gram and at < last), 0)
        place = place if tuple(history[place : place + n]) == gram else 0
        reach = [
            *range(self.prompt - n - m - 1, self.until, -1),
            *range(last, max(self.prompt, self.until), -1),
        ]
        if place == 0:
            place = next((at for at in reach if tuple(history[at : at + n]) == gram), 0)
        for at in reach:
            if all(entry != tuple(history[at : at + n]) for entry, _ in self.entered):
                self.entered.append((tuple(history[at : at + n]), at))
        self.until = max(last, self.until)
        if place == 0:
            return []
        self.asked = next((key for key in self.keys if tuple(history[key[0] : key[0] + n]) == gram), None)
        if self.asked is None:
            self.asked = [place, m]
            self.keys.append(self.asked)
        return history[place + n : place + n + min(m, self.asked[1])]

    def accept(self, accepted: int) -> None:
        if self.asked is not None:
            self.asked[1] = accepted


def texts() -> list[Text]:
    """Return texts of few tokens and of many, loops among them, behind prompts of different lengths."""
    draw = np.random.default_rng(5)
    found = [tuple(draw.integers(0, most, size=70).tolist()) for most in (2, 3, 5, 40) for _ in range(4)]
    found += [tuple((list(range(period)) * 70)[:70]) for period in range(1, 12, 2)]
    return [
        Text(prompt=tokens[:cut], continuation=tokens[cut:])
        for place, tokens in enumerate(found)
        for cut in (12 + 7 * (place % 5), 30)
    ]


@pytest.mark.parametrize("ngram", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_every_draft_is_what_the_search_finds(ngram: int, length: int) -> None:
    memory, searched, drafted = NgramMap(ngram, length), SearchedMap(ngram, length), 0
    for text in texts():
        whole, now = [*text.prompt, *text.continuation], len(text.prompt) + 1
        memory.begin(text.prompt)
        searched.begin(text.prompt)
        while now < len(whole):
            copied, expected = memory.draft(whole[:now]), searched.draft(whole[:now])
            assert copied == expected
            right = next((i for i, token in enumerate(copied) if whole[now + i : now + i + 1] != [token]), len(copied))
            memory.accept(right)
            searched.accept(right)
            drafted += len(copied)
            now += 1 + right
    assert drafted > 100


def test_no_more_is_copied_than_was_accepted_the_last_time() -> None:
    memory = NgramMap(1, 3)
    text = [1, 2, 3, 4, 9, 9, 9, 7, 1, 2, 8, 8, 5, 6]
    memory.begin(text)
    assert memory.draft([*text, 5, 1]) == [2, 8, 8]
    memory.accept(1)
    assert memory.draft([*text, 5, 1, 2, 0, 0, 0, 1]) == [2]


def test_what_a_text_left_behind_shortens_copies_of_the_next() -> None:
    fresh = [mapped_walk([text], 2, 8).rounds.sum() for text in texts()]
    assert mapped_walk(texts(), 2, 8).rounds.sum() > sum(fresh)


def test_a_walk_counts_every_token_behind_the_first() -> None:
    found = mapped_walk(texts(), 2, 4)
    assert found.tokens.tolist() == [len(text.continuation) - 1 for text in texts()]
    assert (found.rounds >= 1).all() and (found.drafts <= found.rounds).all() and found.drafted.sum() > 0
    assert (found.tokens - found.rounds <= found.drafted).all()


@pytest.mark.parametrize(("ngram", "length"), [(0, 4), (2, 0)])
def test_nothing_is_looked_for_or_copied_by_no_tokens(ngram: int, length: int) -> None:
    with pytest.raises(PlanError, match="1 token or more"):
        mapped_walk(texts(), ngram, length)


def test_only_its_engine_decodes_so() -> None:
    policy = LookupPolicy(length=4, max_ngram=2, min_ngram=2, occurrence="mapped")
    assert policy.code == "lookup of 4 after 2..2-grams (mapped)"
    assert source_of((policy, LOOKUP)) == "lookup:2-2-mapped"
    with pytest.raises(PlanError, match=r"llama.cpp's own search"):
        TextState().draft([1, 2, 1, 2], policy)
    assert find_continuation([1, 2, 1, 2], 4, 2) == [1, 2]
