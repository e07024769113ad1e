"""The growing texts of a running batch: drafts are made of all of them by one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np

from ...errors import PlanError
from ..kernels.arrays import Floats, Ints
from ..kernels.automaton import forget, memory_of
from ..kernels.ranking import ranking_memory_of
from ..kernels.several import ENTRIES, copy_from_all, grow_behind_all, look_up_in_all
from ..records.draft import DraftBatch
from ..strategies import TreePolicy, drafting
from ..strategies.cacheback import CachebackPolicy
from ..strategies.hybrid import HybridPolicy
from ..strategies.lookup import LookupPolicy
from ..strategies.stack import StackPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.text import TextPolicy
from .image_ids import said
from .searched import search_of
from .state import TextState
from .suffix import copying_of, limits_of
from .tree import batch_of

FIRST_ROOM = 256  # tokens of a text
REPEATING = (0, 1) * 8  # a text from which everybody copies
TOGETHER = 2048  # tokens of the longest text up to which all lie in one array, each with room for as many

Text = Sequence[int]
Search = Callable[[Ints, Ints, Ints, Ints], int]  # of memory and what is told; writes to work in and what is drafted


class Texts:
    """What text policies keep of the texts in a batch's slots, each kind from when it was first asked.

    What is drafted of each is what a `TextState` drafts of it.
    """

    def __init__(self) -> None:
        """Hold no text."""
        self._rows: list[int] = []  # of each slot, where its text lies in what is kept
        self._looked_up, self._read = _LookedUp(), _Read()
        self._states: dict[int, TextState] = {}  # by row, of what is asked text by text

    def admit(self, slot: int) -> None:
        """Forget a slot's former text."""
        while slot >= len(self._rows):
            self._rows.append(len(self._rows))
        self._forget(self._rows[slot])

    def move(self, source: int, target: int) -> None:
        """Let `target` become the slot of the text in `source`, which is read anew where it had moved there before."""
        self._forget(self._rows[target])
        self._rows[source], self._rows[target] = self._rows[target], self._rows[source]

    def _forget(self, row: int) -> None:
        self._looked_up.forget(row)
        self._read.forget(row)
        self._states.pop(row, None)

    def draft(self, texts: Sequence[Text], policy: TextPolicy) -> DraftBatch:
        """Return one tree per text, its root alone where the text holds nothing to draft from.

        Args:
            texts: the committed text in every slot; each begins with what it was before.
            policy: any.

        Raises:
            PlanError: the policy searches in an engine's memory.
        """
        rows = self._rows[: len(texts)]
        if not isinstance(policy, CachebackPolicy) and max(map(len, texts)) <= TOGETHER:
            if isinstance(policy, LookupPolicy):
                return self._looked_up.draft(rows, texts, policy)
            return self._read.draft(rows, texts, policy)
        states = [self._states.setdefault(row, TextState()) for row in rows]
        return batch_of([state.draft(text, policy) for state, text in zip(states, texts, strict=True)])


class _Kept(ABC):
    """What one kind of search keeps of texts: a row of one array each, with room for as many tokens."""

    def __init__(self) -> None:
        self._room = FIRST_ROOM
        self._memory: Ints = np.empty((0, 0), dtype=np.int64)
        self._heard: list[tuple[int, int]] = []  # by row, tokens of the text that were taken in, and those said of them
        self._trees: Ints = np.empty((0, 3, 0), dtype=np.int64)  # to work in

    def forget(self, row: int) -> None:
        """Go back to the empty text in a row."""
        if row < len(self._heard):
            self._heard[row] = 0, 0
            self._clear(self._memory[row])

    def _drafted(self, rows: Sequence[int], texts: Sequence[Text], drafts: int, search: Search) -> DraftBatch:
        """Return what a search writes of texts, trees of at most so many nodes behind their roots."""
        heard, told = self._news(rows, texts)
        batch = len(rows)
        if self._trees.shape[0] < batch or self._trees.shape[2] != drafts + 1:
            self._trees = np.empty((batch, 3, drafts + 1), dtype=np.int64)
        drafted = np.empty(batch * (1 + 3 * (drafts + 1)), dtype=np.int64)
        nodes = search(self._memory, told, self._trees, drafted)
        for row, own in zip(rows, heard, strict=True):
            self._heard[row] = own
        tokens, parents, depths = drafted[batch : batch * (1 + 3 * nodes)].reshape(3, batch, nodes)
        sizes = drafted[:batch]
        return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=(), is_sound=True)

    def _news(self, rows: Sequence[int], texts: Sequence[Text]) -> tuple[list[tuple[int, int]], Ints]:
        """Have room for texts; return what will have been taken in, and what is new as kernels are told of it."""
        if max(rows) >= len(self._heard):
            self._begin_anew(2 * max(rows) + 1 if self._heard else max(rows) + 1, self._room)
        told, first = [len(rows)], 1 + ENTRIES * len(rows)
        fresh: list[int] = []
        heard: list[tuple[int, int]] = []
        for row, text in zip(rows, texts, strict=True):
            read, before = self._heard[row]
            new = said(text[read:])
            fresh += new
            told += (row, before, first + len(fresh))
            heard.append((len(text), before + len(new)))
            if before + len(new) > self._room:
                self._begin_anew(len(self._heard), 2 * (before + len(new)))
                return self._news(rows, texts)
        told += fresh
        return heard, np.fromiter(told, dtype=np.int64, count=len(told))

    def _begin_anew(self, rows: int, room: int) -> None:
        """Have so many rows with room for so many tokens, and nothing in them: all texts are read again."""
        memory = np.tile(self._empty(room), (rows, 1))
        self._memory, self._room, self._heard = memory, room, [(0, 0)] * rows

    @abstractmethod
    def _empty(self, tokens: int) -> Ints:
        """Return what the empty text lies in, with room for so many tokens."""

    @abstractmethod
    def _clear(self, memory: Ints) -> None:
        """Go back to the empty text."""


class _LookedUp(_Kept):
    """Texts in which prompt lookup searches."""

    _asked: LookupPolicy | None = None  # last; policies seldom change, and take long to be looked up
    _search: Ints

    def draft(self, rows: Sequence[int], texts: Sequence[Text], policy: LookupPolicy) -> DraftBatch:
        if policy is not self._asked:
            self._search, self._asked = search_of(policy), policy
        return self._drafted(
            rows, texts, policy.length, lambda kept, told, *room: look_up_in_all(kept, told, self._search, *room)
        )

    def _empty(self, tokens: int) -> Ints:
        return np.zeros(tokens, dtype=np.int64)

    def _clear(self, memory: Ints) -> None:
        """Let its number of tokens alone tell what is in it."""


class _Read(_Kept):
    """Texts with their suffix automata."""

    _asked: SuffixPolicy | SuffixTreePolicy | None = None  # last
    _numbers: Ints  # of that one, a chain
    _limits: tuple[Ints, Floats]  # of that one, a tree

    def __init__(self) -> None:
        super().__init__()
        self._ranked = dict[int, tuple[Floats, Ints]]()  # to work in, by most nodes

    def draft(self, rows: Sequence[int], texts: Sequence[Text], policy: SuffixPolicy | SuffixTreePolicy) -> DraftBatch:
        if policy is not self._asked:
            if isinstance(policy, SuffixPolicy):
                self._numbers = copying_of(policy)
            else:
                self._limits = limits_of(policy)
            self._asked = policy
        if isinstance(policy, SuffixPolicy):
            return self._drafted(
                rows, texts, policy.length, lambda kept, told, *room: copy_from_all(kept, told, self._numbers, *room)
            )
        most = policy.nodes - 1
        if most not in self._ranked:
            self._ranked[most] = ranking_memory_of(most)
        asked = *self._limits, *self._ranked[most]
        return self._drafted(rows, texts, most, lambda kept, told, *room: grow_behind_all(kept, told, *asked, *room))

    def _empty(self, tokens: int) -> Ints:
        return memory_of(tokens)

    def _clear(self, memory: Ints) -> None:
        forget(memory)


def load_kernels(policies: Iterable[TreePolicy]) -> None:
    """Draft once by whatever copies, so that no round waits until its kernels are compiled or loaded."""
    for policy in policies:
        copies, texts, state = _copying(drafting(policy)), Texts(), TextState()
        texts.admit(0)
        if copies is not None:
            with suppress(PlanError):  # an engine's own search, which is no round's here
                for text in (REPEATING[:6], REPEATING):
                    texts.draft([text], copies)
                    state.draft(text, copies)  # what stacks do, and whoever looks back


def _copying(policy: TreePolicy) -> TextPolicy | None:
    """Return what of a policy copies from the text, None where nothing does."""
    if isinstance(policy, HybridPolicy):
        return policy.text
    if isinstance(policy, StackPolicy):
        return policy.lookup if policy.has_lookup else None
    return policy if isinstance(policy, TextPolicy) else None
