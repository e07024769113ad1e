"""Prompt lookup as llama.cpp's `ngram-map-k` does it, on recorded texts one after the other.

While it runs, a server remembers where it found each n-gram and how many of the tokens copied behind it were last
accepted; it never copies more again. It remembers places, which it reads in a later request's text, so leftovers of
earlier texts shorten its copies. Hence no text is walked alone, and a walk counts the second pass over all texts.

    1. the place where the n-gram was found before, if `length` tokens follow it
    2. else the latest place of the prompt that was not entered yet, then of the text behind it, that so many follow

Source: its rounds on texts of real models, and the rule in code in github.com/ggml-org/llama.cpp, common/ngram-map;
tested against a word-for-word search. Hash collisions are left out.

Prompt lookup as llama.cpp's `ngram-simple` does it, at every position of recorded texts.

The text's last n tokens are looked for, latest occurrence first, in all but its newest token, which is not copied
either; its first place does not count. What follows is copied if it has n tokens or more, and the text more than
n-gram, copy and two tokens together. So a loop of n tokens or fewer, where other lookups shine, gives no draft.

Source: its rounds on texts of real models, which tests check; documented nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PlanError
from ..records.draft import Ints
from ..records.recording import Text
from ..records.results import PositionResults, same_everywhere
from ..strategies.lookup import LookupPolicy
from .walk import Walk

Gram = tuple[int, ...]


@dataclass(slots=True)
class _Key:
    """An n-gram that was copied behind: its first place, and the tokens last accepted behind it."""

    place: int
    accepted: int


class NgramMap:
    """What one slot of a server remembers, and what it drafts from that."""

    def __init__(self, ngram: int, length: int) -> None:
        """Take n-grams of `ngram` tokens, copies of at most `length`; PlanError where one is below 1."""
        if ngram < 1 or length < 1:
            raise PlanError(f"a lookup needs n-grams and copies of 1 token or more, got {ngram} and {length}")
        self._ngram, self._length = ngram, length
        self._entered: dict[Gram, int] = {}  # n-grams by the place that is remembered
        self._keys: list[_Key] = []
        self._prompt = self._newest = 0  # tokens of the last prompt, and of the history when a draft was last asked for
        self._until = 0  # last place that was entered
        self._text: list[int] = []
        self._places: dict[Gram, list[int]] = {}  # of every n-gram of this text, rising
        self._by_gram: dict[Gram, _Key] = {}  # the first key whose place holds an n-gram in this text
        self._asked: _Key | None = None  # whose copy was drafted last

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a request; where its prompt is shorter than the last text, what lay behind the last prompt is lost."""
        size, kept = len(prompt), self._prompt
        if kept > size:
            kept = max(size - self._ngram - self._length, 0)
        if size < self._newest:
            self._entered = {gram: place for gram, place in self._entered.items() if place < kept}
            self._keys = [key for key in self._keys if key.place < kept]
            self._until = max(kept - 1, 0)
        self._prompt = self._newest = size
        self._text, self._places, self._by_gram = [], {}, {}
        self._read(prompt)
        for key in self._keys:
            self._by_gram.setdefault(self._gram_at(key.place), key)

    def draft(self, known: Sequence[int]) -> list[int]:
        """Return what is copied behind a text, its newest token included; `known` begins with what it was before."""
        history, size = len(known) - 1, self._ngram
        self._read(known[len(self._text) : history])
        self._asked = None
        if history < 2 * size + self._length:
            return []
        self._newest = history
        place = self._found(tuple(known[len(known) - size :]), history)
        self._enter(history)
        if place == 0:
            return []
        gram = self._gram_at(place)
        self._asked = self._by_gram.get(gram)
        if self._asked is None:
            self._asked = self._by_gram[gram] = _Key(place=place, accepted=self._length)
            self._keys.append(self._asked)
        begin = place + size
        return self._text[begin : begin + min(self._length, self._asked.accepted)]

    def accept(self, accepted: int) -> None:
        """Note how many tokens of the last draft were accepted."""
        if self._asked is not None:
            self._asked.accepted = accepted

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            place = len(self._text) - self._ngram
            if place >= 0:
                self._places.setdefault(self._gram_at(place), []).append(place)

    def _gram_at(self, place: int) -> Gram:
        return tuple(self._text[place : place + self._ngram])

    def _last(self, history: int) -> int:
        """Return the last place behind whose n-gram a whole copy lies in a history of so many tokens."""
        return history - self._ngram - self._length - 1

    def _found(self, gram: Gram, history: int) -> int:
        """Return the place behind which is copied, 0 for none."""
        entered = self._entered.get(gram, 0)
        if 0 < entered < self._last(history) and self._gram_at(entered) == gram:
            return entered
        places = self._places.get(gram, [])
        in_prompt = _latest(places, self._until, self._last(self._prompt))
        return in_prompt or _latest(places, max(self._prompt, self._until), self._last(history))

    def _enter(self, history: int) -> None:
        """Remember the places that came within reach; a remembered n-gram does not change its place."""
        in_prompt = range(self._last(self._prompt), self._until, -1)
        behind = range(self._last(history), max(self._prompt, self._until), -1)
        for places in (in_prompt, behind):
            for place in places:
                self._entered.setdefault(self._gram_at(place), place)
        self._until = max(self._last(history), self._until)


def mapped_walk(texts: Sequence[Text], ngram: int, length: int) -> Walk:
    """Return the rounds on each text in a server that has decoded all of them once before, in one slot, in order.

    `ngram` tokens are looked for, at most `length` copied; PlanError where one is below 1.
    """
    memory = NgramMap(ngram, length)
    found = [[_rounds(memory, text) for text in texts] for _ in range(2)]
    tokens, rounds, drafts, drafted = np.array(found[-1], dtype=np.float64).T
    return Walk(tokens=tokens, rounds=rounds, drafts=drafts, drafted=drafted)


def _rounds(memory: NgramMap, text: Text) -> tuple[int, int, int, int]:
    """Return a text's tokens behind the first one, rounds, rounds that drafted, and drafted tokens."""
    whole = [*text.prompt, *text.continuation]
    now = len(text.prompt) + 1
    rounds = drafts = drafted = 0
    memory.begin(text.prompt)
    while now < len(whole):
        copied = memory.draft(whole[:now])[: len(whole) - now - 1]
        right = next((i for i, token in enumerate(copied) if token != whole[now + i]), len(copied))
        if copied:
            memory.accept(right)
        rounds, drafts, drafted = rounds + 1, drafts + bool(copied), drafted + len(copied)
        now += 1 + right
    return len(text.continuation) - 1, rounds, drafts, drafted


def _latest(places: Sequence[int], above: int, last: int) -> int:
    """Return the largest of rising places in (above, last], 0 where there is none."""
    at = bisect_right(places, last)
    return places[at - 1] if at > bisect_left(places, max(above, 0) + 1) else 0


def whole_ngram_results(
    texts: Sequence[Text], ngram: int, lengths: Sequence[int]
) -> Iterator[tuple[LookupPolicy, PositionResults]]:
    """Yield what copies of each length give at every position; `ngram` tokens are looked up; PlanError: one below 1."""
    if ngram < 1 or min(lengths, default=1) < 1:
        raise PlanError(f"a lookup needs n-grams and copies of 1 token or more, got {ngram} and {list(lengths)}")
    found = [_found(np.array([*text.prompt, *text.continuation]), len(text.prompt) + 1, ngram) for text in texts]
    known, there, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for length in lengths:
        drafted = np.minimum(there, length)
        drafted = np.where((drafted >= ngram) & (known > ngram + length + 2), drafted, 0)
        yield (
            LookupPolicy(length=length, max_ngram=ngram, min_ngram=ngram),
            PositionResults(
                accepted=np.minimum(right, drafted),
                sizes=1 + drafted,
                censored=np.zeros(len(drafted), dtype=np.bool_),
                widths=same_everywhere(()),
            ),
        )


def _found(text: Ints, first: int, ngram: int) -> tuple[Ints, Ints, Ints]:
    """Return three arrays (positions + 1,): tokens known there, tokens to copy, and how many of these come next.

    `text` (tokens,) is prompt and continuation, `first` the tokens known at the first position.
    """
    known = np.arange(first, len(text) + 1)
    there, right = np.zeros((2, len(known)), dtype=np.int64)
    for row, end in enumerate(known[:-1]):  # behind the last one nothing is drafted
        begins = np.arange(1, max(end - ngram - 1, 1))  # of earlier n-grams; their copies end before the newest token
        for place in range(ngram):
            begins = begins[text[begins + place] == text[end - ngram + place]]
        if len(begins):
            copied = text[begins[-1] + ngram : end - 1]
            ahead = text[end : end + len(copied)]
            differs = np.flatnonzero(copied[: len(ahead)] != ahead)
            there[row], right[row] = len(copied), differs[0] if len(differs) else len(ahead)
    return known, there, right
