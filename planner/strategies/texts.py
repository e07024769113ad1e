"""The growing texts of a running batch and of a replay: their memories, and the drafts made from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress

import numpy as np

from ...errors import PlanError
from ..kernels.several import ENTRIES
from ..records.draft import DraftBatch, Ints
from ..records.image_ids import said
from .base import Strategy
from .delegating import DelegatingPolicy
from .hybrid import HybridPolicy
from .stack import StackPolicy
from .text import BatchMemory, Search, TextMemory, TextPolicy, TextTree, batch_of

FIRST_ROOM = 256  # tokens of a text
REPEATING = (0, 1) * 8  # a text from which everybody copies
TOGETHER = 2048  # tokens of the longest text up to which all lie in one array, each with room for as many


class TextState:
    """One growing text and its memories, one for each kind of search from its first draft on; tokens only join it.

    Its drafts are functions of tokens and strategy alone. Images are skipped: their neighbours count as adjacent.
    """

    def __init__(self) -> None:
        self._said: list[int] = []
        self._read = 0  # tokens of the text so far, images included
        self._memories: dict[Hashable, TextMemory] = {}

    def draft(self, tokens: Sequence[int], policy: TextPolicy) -> TextTree:
        return self.behind(tokens, (), policy)

    def behind(self, tokens: Sequence[int], held: Sequence[int], policy: TextPolicy) -> TextTree:
        """Return what a strategy drafts behind the text and tokens that are not committed: a lookup, if any are."""
        self._said += said(tokens[self._read :])
        self._read = len(tokens)
        key = policy.memory_key
        if key not in self._memories:
            self._memories[key] = policy.memory()
        memory = self._memories[key]
        return memory.draft(policy, self._said[memory.length :], said(held))


class Texts:
    """The memories of the texts in a batch's slots, which only grow; each draft is that of a `TextState`."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # of each slot, where its text lies in what is kept
        self._held: dict[type[BatchMemory], _Held] = {}
        self._states: dict[int, TextState] = {}  # by row, of what is asked text by text

    def admit(self, slot: int) -> None:
        while slot >= len(self._rows):
            self._rows.append(len(self._rows))
        self._forget(self._rows[slot])

    def move(self, source: int, target: int) -> None:
        """Make `target` the slot of the text in `source`; its memory moves along, and that of `target` is emptied."""
        self._forget(self._rows[target])
        self._rows[source], self._rows[target] = self._rows[target], self._rows[source]

    def _forget(self, row: int) -> None:
        for held in self._held.values():
            held.forget(row)
        self._states.pop(row, None)

    def draft(self, texts: Sequence[Sequence[int]], policy: TextPolicy) -> DraftBatch:
        """Return one tree per text, its root alone without a draft; PlanError if an engine's memory is needed."""
        rows = self._rows[: len(texts)]
        memory = policy.batch_memory
        if memory is not None and max(map(len, texts)) <= TOGETHER:
            if memory not in self._held:
                self._held[memory] = _Held(memory)
            return self._held[memory].draft(rows, texts, policy)
        states = [self._states.setdefault(row, TextState()) for row in rows]
        return batch_of([state.draft(text, policy) for state, text in zip(states, texts, strict=True)])


class _Held:
    """The texts of one kind of search: a row of one array each, with room for equally many tokens."""

    def __init__(self, memory: type[BatchMemory]) -> None:
        self._kind = memory
        self._asked: TextPolicy | None = None  # last; strategies seldom change, and take long to be looked up
        self._search: Search  # of that one
        self._room = FIRST_ROOM
        self._memory: Ints = np.empty((0, 0), dtype=np.int64)
        self._heard: list[tuple[int, int]] = []  # by row, tokens of the text that were taken in, and those said of them
        self._trees: Ints = np.empty((0, 3, 0), dtype=np.int64)  # to work in

    def forget(self, row: int) -> None:
        if row < len(self._heard):
            self._heard[row] = 0, 0
            self._kind.clear(self._memory[row])

    def draft(self, rows: Sequence[int], texts: Sequence[Sequence[int]], policy: TextPolicy) -> DraftBatch:
        if policy is not self._asked:
            self._search, self._asked = policy.searcher(), policy
        drafts = policy.max_verify_tokens - 1
        heard, told = self._news(rows, texts)
        batch = len(rows)
        if self._trees.shape[0] < batch or self._trees.shape[2] != drafts + 1:
            self._trees = np.empty((batch, 3, drafts + 1), dtype=np.int64)
        drafted = np.empty(batch * (1 + 3 * (drafts + 1)), dtype=np.int64)
        nodes = self._search(self._memory, told, self._trees, drafted)
        for row, own in zip(rows, heard, strict=True):
            self._heard[row] = own
        tokens, parents, depths = drafted[batch : batch * (1 + 3 * nodes)].reshape(3, batch, nodes)
        sizes = drafted[:batch]
        return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=(), is_sound=True)

    def _news(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], Ints]:
        """Make room for texts; return each one's tokens after this draft, with and without images, and `told`."""
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
        """Make `rows` empty rows with room for so many tokens: all texts are read again."""
        memory = np.tile(self._kind.empty(room), (rows, 1))
        self._memory, self._room, self._heard = memory, room, [(0, 0)] * rows


def load_kernels(policies: Iterable[Strategy]) -> None:
    """Draft once by whatever copies, so that no round waits for kernels to compile or load."""
    for policy in policies:
        copies, texts, state = _copying(policy), Texts(), TextState()
        texts.admit(0)
        if copies is not None:
            with suppress(PlanError):  # an engine's own search, which is no round's here
                for text in (REPEATING[:6], REPEATING):
                    texts.draft([text], copies)
                    state.draft(text, copies)  # what stacks do, and whoever looks back


def _copying(policy: Strategy) -> TextPolicy | None:
    drafts = policy.draft if isinstance(policy, DelegatingPolicy) else policy
    if isinstance(drafts, HybridPolicy):
        return drafts.text
    if isinstance(drafts, StackPolicy):
        return drafts.lookup if drafts.has_lookup else None
    return drafts if isinstance(drafts, TextPolicy) else None
