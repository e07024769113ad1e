"""Copying behind the longest end of the text that occurred before. Source: SAM decoding, arXiv:2411.10666."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np

from ..kernels.arrays import Ints
from ..records.costs import PlannedCosts
from ..records.recording import Recorded, Text
from ..records.results import PositionResults
from .automaton import FIRST, NEWEST, AutomatonPolicy, memory_of
from .base import require_at_least
from .lookup import Occurrence
from .offers import Graded, Limits, Published
from .suffix_sweep import copy_from_all, read_and_copy, suffix_sweep
from .text import Search, TextTree, laid_out, named_copy, results_of_trees

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 40)
BOUNDS = ((0, 48), (1, 0), (1, 1), (2, 0), (4, 1))  # factor and offset; the first is none at all
MATCHES = (1, 2, 3, 5)  # shortest
OCCURRENCES: tuple[Occurrence, ...] = ("last", "first")
HYBRID_LENGTHS = (4, 8, 16, 32)
HYBRID_MATCHES = (2, 3, 5, 8)  # shortest that is copied from; 5 is published
HYBRID_BOUNDS = ((0, 48), (4, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixPolicy(AutomatonPolicy):
    """Copy what followed an earlier occurrence of the text's longest end that occurred before.

    A match of m tokens is followed by min(length, factor * m + offset) copied ones. A copy that reaches the text's end
    goes on with what it has copied, as in a repeating text; the published code ends there. `min_match` is the shortest
    match that is copied from; of its earlier occurrences the published code takes the first.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666: min(40, 4 m + 1) tokens behind the first occurrence.
    """

    length: int = 40
    factor: int = 4
    offset: int = 1
    min_match: int = 1
    occurrence: Occurrence = "first"
    kind: Literal["suffix"] = "suffix"

    complexity: ClassVar = 1
    in_hybrids: ClassVar = True
    sweeps_together: ClassVar = True
    grid_place: ClassVar = 2
    names: ClassVar = {r"suffix of m >= \d+ \(\w+\), \d+m\+\d+ up to (?P<length>\d+)": named_copy()}

    def __post_init__(self) -> None:
        require_at_least("suffix length", self.length, 1)
        require_at_least("suffix factor", self.factor, 0)
        require_at_least("suffix offset", self.offset, 0)
        require_at_least("suffix factor + offset", self.factor + self.offset, 1)
        require_at_least("suffix min_match", self.min_match, 1)

    @property
    def code(self) -> str:
        bound = f"{self.factor}m+{self.offset} up to {self.length}"
        return f"suffix of m >= {self.min_match} ({self.occurrence}), {bound}"

    @property
    def max_verify_tokens(self) -> int:
        return self.length + 1

    @property
    def copied_on_gpu(self) -> SuffixPolicy:
        return self

    def copying(self) -> Callable[[Ints, Ints], TextTree]:
        numbers = copying_of(self)

        def copied(memory: Ints, placed: Ints) -> TextTree:
            chain = np.empty((3, self.length + 1), dtype=np.int64)
            return chain[:, : read_and_copy(memory, placed, numbers, chain)]

        return copied

    def searcher(self) -> Search:
        numbers = copying_of(self)

        def copied(memories: Ints, told: Ints, room: Ints, drafted: Ints) -> int:
            return copy_from_all(memories, told, numbers, room, drafted)

        return copied

    def results_in(self, texts: Sequence[Text]) -> PositionResults:
        ((_, results),) = suffix_results(texts, [self])
        return results

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[SuffixPolicy]) -> Iterator[Graded]:
        for policy, results in suffix_results(recorded.texts, variants) if variants else ():
            yield Graded(policy, results)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        """Yield the chains of the grid, without those whose bound is never reached by their length."""
        lengths = [length for length in LENGTHS if length < limits.most_tokens]
        chains = [
            cls(length=length, factor=factor, offset=offset, min_match=least, occurrence=which)
            for length, (factor, offset), least, which in product(lengths, BOUNDS, MATCHES, OCCURRENCES)
            if factor == 0 or factor * least + offset < length
        ]
        return cls.sweep(recorded, chains)

    @classmethod
    def beside_models(cls, most_tokens: int) -> list[SuffixPolicy]:
        return [
            cls(length=length, min_match=least, factor=factor, offset=offset, occurrence="last")
            for length, least, (factor, offset) in product(HYBRID_LENGTHS, HYBRID_MATCHES, HYBRID_BOUNDS)
            if length < most_tokens and (factor == 0 or factor * least + offset < length)
        ]

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [PUBLISHED]

    @classmethod
    def probes(cls, most_tokens: int) -> list[SuffixPolicy]:
        return [cls(length=length, factor=8) for length in (2, min(32, most_tokens - 1))]


def copying_of(policy: SuffixPolicy) -> Ints:
    """Return a chain's policy as kernels take it."""
    occurrence = FIRST if policy.occurrence == "first" else NEWEST
    return np.array([policy.length, policy.factor, policy.offset, policy.min_match, occurrence], dtype=np.int64)


def suffix_results(
    texts: Sequence[Text], policies: Sequence[SuffixPolicy]
) -> Iterator[tuple[SuffixPolicy, PositionResults]]:
    """Yield every policy's results; the texts are read once."""
    laid = laid_out(texts)
    matches, right = np.zeros(laid.rows, dtype=np.int64), np.zeros((2, laid.rows), dtype=np.int64)
    most = max(policy.length for policy in policies)
    suffix_sweep(laid.texts, memory_of(laid.longest), most, matches, right)
    for policy in policies:
        which = 0 if policy.occurrence == "first" else 1
        bound = np.minimum(policy.length, policy.factor * matches + policy.offset) * (matches >= policy.min_match)
        yield policy, results_of_trees(np.minimum(right[which], bound), 1 + bound)


SAM_DECODING = SuffixPolicy(length=40, factor=4, offset=1, min_match=1, occurrence="first")
PUBLISHED = Published(
    name="SAM decoding 40/4",
    source="arXiv:2411.10666, dynamic automaton; a copy goes on at the end",
    make=lambda: SAM_DECODING,
    place=0,
)
