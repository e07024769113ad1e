"""The base of strategies that draft from the text itself, without a model.

Their drafts are functions of the committed text alone, so they replay from the recorded texts without a recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..kernels.arrays import ROOT_TOKEN, Small
from ..records.draft import DraftBatch, Ints
from ..records.image_ids import said
from ..records.recording import Recorded, Text
from ..records.results import PositionResults, same_everywhere
from .base import Bounds, Source, Strategy
from .naming import Namer, counted

TextTree: TypeAlias = Ints  # (3, nodes) tokens, parents and depths, the root first
Search = Callable[[Ints, Ints, Ints, Ints], int]  # of memory and what is told; writes to work in and what is drafted

PADDING = np.array([-1, 0, 1]).reshape(3, 1, 1)  # token, parent and depth, as a DraftBatch has them


class TextMemory(ABC):
    """A growing text, and what strategies look it up in."""

    length: int  # tokens read

    @abstractmethod
    def draft(self, policy: TextPolicy, fresh: Sequence[int] = (), held: Sequence[int] = ()) -> TextTree:
        """Append `fresh`; return what the policy, of the memory's own kind, drafts behind the text.

        `held` tokens follow the text in this search alone; only a lookup takes any.
        """


class BatchMemory(ABC):
    """How one kind of search holds texts: a row of one array each, with room for as many tokens."""

    @staticmethod
    @abstractmethod
    def empty(tokens: int) -> Ints:
        """Return the empty text's array, with room for so many tokens."""

    @staticmethod
    @abstractmethod
    def clear(memory: Ints) -> None:
        """Go back to the empty text."""


class RecordedTexts(NamedTuple):
    """Recorded texts for kernels, one after the other: their tokens and where each begins, (texts + 1,).

    `prompts` (texts,) counts the prompt and one token more: there the first position's text ends.
    """

    tokens: Ints
    firsts: Ints
    prompts: Ints


class Judged(NamedTuple):
    """What trees of several settings have right, and their nodes, roots included."""

    accepted: Small
    sizes: Small


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaidOut:
    """Recorded texts, their number of positions, and the tokens of the longest."""

    texts: RecordedTexts
    rows: int
    longest: int


class TextPolicy(Strategy):
    """A strategy that drafts from the text itself."""

    __slots__ = ()
    source: ClassVar[Source] = "text"
    is_recorded: ClassVar[bool] = False
    batch_memory: ClassVar[type[BatchMemory] | None] = None  # what holds several texts; None: each by itself

    @property
    def memory_key(self) -> Hashable:
        """A key equal for strategies that can share one memory of a text."""
        raise NotImplementedError

    def memory(self) -> TextMemory:
        """Return the memory of a text, without a token yet."""
        raise NotImplementedError

    def searcher(self) -> Search:
        """Return what drafts behind several texts in a `batch_memory`; PlanError if an engine's memory is needed."""
        raise NotImplementedError

    @classmethod
    def beside_models(cls, most_tokens: int) -> Sequence[TextPolicy]:
        """Return what hybrids copy, where one verify can feed so many tokens."""
        return ()

    def results_in(self, texts: Sequence[Text]) -> PositionResults:
        """Return what it would have accepted at every position of recorded texts."""
        raise NotImplementedError

    def results(self, recorded: Recorded) -> PositionResults:
        return self.results_in(recorded.texts)

    @property
    def longest(self) -> int:
        """Most drafted tokens on one path."""
        return self.max_verify_tokens - 1

    @property
    def bounds(self) -> Bounds:
        return Bounds(depth=self.longest, width=1, tokens=self.max_verify_tokens)

    @property
    def children(self) -> int:
        return 0

    @property
    def sure_width(self) -> int:
        return 0


def named_copy(of: str = "") -> Namer:
    """Return what names chains copied from the text, whose code contains their length."""
    return lambda found, drafter: f"copy from the text, up to {counted(int(found['length']), 'token')}{of}"


def named_text_tree(of: str) -> Namer:
    """Return what names trees drafted from the text, whose code contains their nodes."""
    return lambda found, drafter: f"tree of {found['nodes']} nodes from the text ({of})"


def room_for_tree(nodes: int) -> TextTree:
    """Return a tree with its root alone and room for so many nodes behind it."""
    tree = np.zeros((3, nodes + 1), dtype=np.int64)
    tree[:2, 0] = ROOT_TOKEN, -1
    return tree


def batch_of(trees: Sequence[TextTree]) -> DraftBatch:
    """Return trees as one batch, padded to the largest; a single tree is not copied."""
    counts = [tree.shape[1] for tree in trees]
    sizes = np.array(counts, dtype=np.int64)
    if len(trees) == 1:
        tree = trees[0]
        return DraftBatch(tokens=tree[:1], parents=tree[1:2], depths=tree[2:], sizes=sizes, widths=())
    padded = np.empty((3, len(trees), max(counts)), dtype=np.int64)
    padded[:] = PADDING
    for row, (tree, count) in enumerate(zip(trees, counts, strict=True)):
        padded[:, row, :count] = tree
    return DraftBatch(tokens=padded[0], parents=padded[1], depths=padded[2], sizes=sizes, widths=())


def laid_out(texts: Sequence[Text]) -> LaidOut:
    """Return recorded texts for kernels, without parts of images."""
    begun = [tuple(said(text.prompt)) for text in texts]
    lengths = [len(own) + len(text.continuation) for own, text in zip(begun, texts, strict=True)]
    whole = chain.from_iterable(own + text.continuation for own, text in zip(begun, texts, strict=True))
    tokens = np.fromiter(whole, np.int64, sum(lengths))
    prompts = np.array([len(own) + 1 for own in begun])
    return LaidOut(
        texts=RecordedTexts(tokens, np.cumsum([0, *lengths]), prompts),
        rows=sum(len(text.continuation) for text in texts),
        longest=max(lengths),
    )


def results_of_trees(accepted: Ints | Small, sizes: Ints | Small) -> PositionResults:
    """Return the results of trees that a text drafted at every position."""
    return PositionResults(
        accepted=accepted.astype(np.int64, copy=False),
        sizes=sizes.astype(np.int64, copy=False),
        censored=np.zeros(len(accepted), dtype=np.bool_),
        widths=same_everywhere(()),
    )
