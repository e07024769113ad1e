"""Prompt lookup: the text itself as drafter. Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..kernels.arrays import Ints
from ..records.costs import PlannedCosts
from ..records.recording import Recorded, Text
from ..records.results import PositionResults
from .base import require_at_least
from .lookup_sweep import LookupSearch, append_and_copy, look_up_in_all, lookup_sweep
from .offers import Graded, Limits, Published
from .text import BatchMemory, Search, TextMemory, TextPolicy, TextTree, laid_out, named_copy, results_of_trees

Occurrence = Literal["first", "last"]
AnyOccurrence = Literal["first", "last", "mapped"]  # and that of an engine's memory, which no text alone tells
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)
NGRAMS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3))  # longest, shortest
FIRST_ROOM = 256  # tokens


class LookupMemory(BatchMemory):
    """Texts in which prompt lookup searches: their tokens alone."""

    @staticmethod
    def empty(tokens: int) -> Ints:
        return np.zeros(tokens, dtype=np.int64)

    @staticmethod
    def clear(memory: Ints) -> None:
        """Let its number of tokens alone tell what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy(TextPolicy):
    """Copy up to `length` tokens that followed the same n-gram earlier in the text.

    Attributes:
        max_ngram, min_ngram: the longest n-gram of these sizes that occurred before decides.
        occurrence: the earlier one that is copied behind. transformers (to 5.23) and vLLM take the first; transformers
            also ends a copy before a stop token, which changes no text and no count of rounds. "mapped" is what
            llama.cpp's `ngram-map-k` alone remembers of all that it decoded (`planner/engines/mapped_ngrams.py`).

    Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers' PromptLookupCandidateGenerator.
    """

    length: int
    max_ngram: int = 3
    min_ngram: int = 1
    occurrence: AnyOccurrence = "last"
    kind: Literal["lookup"] = "lookup"

    complexity: ClassVar = 0
    sweeps_together: ClassVar = True
    grid_place: ClassVar = 1
    batch_memory: ClassVar[type[BatchMemory]] = LookupMemory
    names: ClassVar = {r"lookup of (?P<length>\d+) after .*": named_copy(" (prompt lookup)")}

    def __post_init__(self) -> None:
        require_at_least("lookup length", self.length, 1)
        require_at_least("lookup min_ngram", self.min_ngram, 1)
        require_at_least("lookup max_ngram", self.max_ngram, self.min_ngram)

    @property
    def code(self) -> str:
        which = "" if self.occurrence == "last" else f" ({self.occurrence})"
        return f"lookup of {self.length} after {self.max_ngram}..{self.min_ngram}-grams{which}"

    @property
    def occurrence_in_text(self) -> Occurrence:
        """The occurrence to copy behind, where only the text is known; PlanError if it is an engine's memory."""
        if self.occurrence == "mapped":
            raise PlanError(f"{self.label} is llama.cpp's own search, which remembers other texts; decode there")
        return self.occurrence

    @property
    def max_verify_tokens(self) -> int:
        return self.length + 1

    @property
    def copied_on_gpu(self) -> LookupPolicy | None:
        return self if self.occurrence != "mapped" else None

    @property
    def memory_key(self) -> str:
        return self.kind

    def memory(self) -> LookupText:
        return LookupText()

    def searcher(self) -> Search:
        numbers = search_of(self)

        def looked_up(texts: Ints, told: Ints, room: Ints, drafted: Ints) -> int:
            return look_up_in_all(texts, told, numbers, room, drafted)

        return looked_up

    def results_in(self, texts: Sequence[Text]) -> PositionResults:
        sizes = self.max_ngram, self.min_ngram
        ((_, results),) = lookup_results(texts, *sizes, [self.length], self.occurrence_in_text)
        return results

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[LookupPolicy]) -> Iterator[Graded]:
        wanted = {*variants}
        by_search: dict[tuple[int, int, Occurrence], set[int]] = {}
        for one in variants:
            by_search.setdefault((one.max_ngram, one.min_ngram, one.occurrence_in_text), set()).add(one.length)
        for (longest, shortest, which), lengths in sorted(by_search.items()):
            for policy, results in lookup_results(recorded.texts, longest, shortest, sorted(lengths), which):
                if policy in wanted:
                    yield Graded(policy, results)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        lengths = [length for length in LENGTHS if length < limits.most_tokens]
        for max_ngram, min_ngram in NGRAMS if lengths else ():
            for policy, results in lookup_results(recorded.texts, max_ngram, min_ngram, lengths):
                yield Graded(policy, results)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [PUBLISHED]

    @classmethod
    def probes(cls, most_tokens: int) -> list[LookupPolicy]:
        return [cls(length=length, max_ngram=2) for length in (2, min(8, most_tokens - 1))]


def search_of(policy: LookupPolicy) -> Ints:
    """Return a policy as kernels take it; PlanError if it searches in an engine's memory."""
    is_first = policy.occurrence_in_text == "first"
    return np.array([policy.max_ngram, policy.min_ngram, policy.length, is_first])


class LookupText(TextMemory):
    """A growing text in which a decoder looks n-grams up round by round: what `find_continuation` finds, at once.

    It is an array to which only new tokens are written. A list would be read whole in every round.
    """

    def __init__(self) -> None:
        self.length = 0  # tokens read
        self._text = np.empty(FIRST_ROOM, dtype=np.int64)
        self._searches: dict[LookupPolicy, Ints] = {}  # as the kernel takes them

    def draft(self, policy: TextPolicy, fresh: Sequence[int] = (), held: Sequence[int] = ()) -> TextTree:
        assert isinstance(policy, LookupPolicy), "a lookup's text is asked by lookups"
        if policy not in self._searches:
            self._searches[policy] = search_of(policy)
        before, self.length = self.length, self.length + len(fresh)
        needed = self.length + len(held)
        if needed > len(self._text):
            self._text = np.concatenate([self._text[:before], np.empty(2 * needed - before, dtype=np.int64)])
        chain = np.empty((3, policy.length + 1), dtype=np.int64)
        new = np.array([*fresh, *held], dtype=np.int64)
        return chain[:, : append_and_copy(self._text, before, new, self._searches[policy], chain)]


def find_continuation(
    tokens: Sequence[int], length: int, max_ngram: int = 3, min_ngram: int = 1, occurrence: Occurrence = "last"
) -> list[int]:
    """Return up to `length` tokens that followed the text's last n-gram when it occurred before; empty without one.

    The longest n-gram of max_ngram..min_ngram (>= 1) that occurred before decides; of several occurrences the most
    recent, or the first as transformers' and vLLM's lookups take it. A pure function of the committed text,
    O(len(tokens)); an integer array is not copied. PlanError if an argument is out of range.

    Source: prompt lookup decoding, Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding.
    """
    if length < 1 or not 1 <= min_ngram <= max_ngram:
        raise PlanError(
            f"lookup needs length >= 1 and 1 <= min_ngram <= max_ngram, got {length}, {min_ngram} and {max_ngram}"
        )
    text = np.asarray(tokens, dtype=np.int64)
    ends = np.arange(len(text) - 1)  # last positions of earlier n-grams that may still match
    taken = -1
    for ngram in range(1, max_ngram + 1):
        ends = ends[ends >= ngram - 1]
        ends = ends[text[ends - (ngram - 1)] == text[len(text) - ngram]] if len(ends) else ends
        if not len(ends):
            break
        if ngram >= min_ngram:
            taken = int(ends[-1] if occurrence == "last" else ends[0])
    if taken < 0:
        return []
    return [int(token) for token in text[taken + 1 : taken + 1 + length]]


def lookup_results(
    texts: Sequence[Text], max_ngram: int, min_ngram: int, lengths: Sequence[int], occurrence: Occurrence = "last"
) -> Iterator[tuple[LookupPolicy, PositionResults]]:
    """Yield every length's results; the text is searched once, as a shorter draft begins a longer one."""
    policies = [
        LookupPolicy(length=length, max_ngram=max_ngram, min_ngram=min_ngram, occurrence=occurrence)
        for length in lengths
    ]
    laid = laid_out(texts)
    found, right = np.zeros((2, laid.rows), dtype=np.int64)
    search = LookupSearch(max_ngram, min_ngram, max(lengths), occurrence == "first")
    lookup_sweep(laid.texts.tokens, laid.texts.firsts, laid.texts.prompts, search, found, right)
    for policy in policies:
        yield policy, results_of_trees(np.minimum(right, policy.length), 1 + np.minimum(found, policy.length))


TRANSFORMERS_LOOKUP = LookupPolicy(length=10, max_ngram=2, min_ngram=1, occurrence="first")
PUBLISHED = Published(
    name="transformers' prompt lookup",
    source="transformers, PromptLookupCandidateGenerator: 10 tokens, 2-grams, the first match",
    make=lambda: TRANSFORMERS_LOOKUP,
    place=0,
)
