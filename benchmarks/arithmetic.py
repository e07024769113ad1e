"""A task whose answers can be checked: two-digit arithmetic written out in steps, in more than one way.

A problem is `47+38=` or `85-19=`; its text works on tens and ones apart, in either order, and ends in the answer. Order
and words are random, so a good model of these texts is unsure there and sure of digits. In the unsure places a token
other than the target's may be as good; a wrong digit never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<end>"
ALPHABET = "0123456789+-=,; abcdefghijklmnopqrstuvwxyz"
JOINS = (", ", "; then ", " and ")
ENDS = (" so ", " makes ", " gives ")
HELD_OUT = 10  # every so many problems are kept for the test
Tokens = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`first + second` or `first - second`, numbers of two digits; the answer is never negative."""

    first: int
    second: int
    is_sum: bool

    @property
    def prompt(self) -> str:
        """The problem as text."""
        return f"{self.first}{'+' if self.is_sum else '-'}{self.second}="

    @property
    def answer(self) -> str:
        """The end of a right text."""
        return str(self.first + self.second if self.is_sum else self.first - self.second)

    @property
    def is_held_out(self) -> bool:
        """Whether no model was trained on it."""
        return (self.first * 7919 + self.second * 104729 + self.is_sum * 1299709) % 1_000_003 % HELD_OUT == 0

    def steps(self, rng: np.random.Generator) -> str:
        """Return one way of writing the solution out."""
        join, end = JOINS[rng.integers(len(JOINS))], ENDS[rng.integers(len(ENDS))]
        tens_first = bool(rng.integers(2))
        work = self._added(join, tens_first) if self.is_sum else self._taken(join, tens_first)
        return f"{work}{end}{self.answer}"

    def _added(self, join: str, tens_first: bool) -> str:
        tens, ones = (self.first // 10 * 10, self.second // 10 * 10), (self.first % 10, self.second % 10)
        parts = [f"{tens[0]}+{tens[1]}={sum(tens)}", f"{ones[0]}+{ones[1]}={sum(ones)}"]
        return f"{join.join(parts if tens_first else parts[::-1])}{join}{sum(tens)}+{sum(ones)}={self.answer}"

    def _taken(self, join: str, tens_first: bool) -> str:
        parts = [self.second // 10 * 10, self.second % 10]
        first, then = parts if tens_first else parts[::-1]
        left = self.first - first
        return f"{self.first}-{first}={left}{join}{left}-{then}={self.answer}"


def problems(seed: int, *, is_held_out: bool) -> Iterator[Problem]:
    """Yield problems without end, of the training part or of the held-out one."""
    rng = np.random.default_rng(seed)
    while True:
        first, second = rng.integers(10, 100, 2).tolist()
        problem = Problem(first=first, second=second, is_sum=bool(rng.integers(2)))
        if (problem.is_sum or first >= second) and problem.is_held_out == is_held_out:
            yield problem


def exam(count: int, seed: int = 1) -> list[Problem]:
    """Return different held-out problems."""
    found: dict[Problem, None] = {}
    for problem in problems(seed, is_held_out=True):
        found.setdefault(problem)
        if len(found) == count:
            return list(found)
    raise AssertionError("problems never end")


def arithmetic_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per character."""
    vocabulary = {END: 0} | {letter: place for place, letter in enumerate(ALPHABET, start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def training_tokens(count: int, seed: int = 0) -> Tokens:
    """Return so many solved training problems as one array of tokens, each with an end token."""
    place = {letter: token for token, letter in enumerate(ALPHABET, start=1)}
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    for _, problem in zip(range(count), problems(seed, is_held_out=False), strict=False):
        ids += [place[letter] for letter in problem.prompt + problem.steps(rng)]
        ids.append(0)
    return np.array(ids, dtype=np.uint16)
