"""The suffix automaton of a text, extended token by token.

A state is the set of all strings that end at the same places of the text; state 0 holds the empty one. Links from the
newest state visit every end of the text that occurred before, the longest first. Reading a token takes O(1) amortised;
updating counts and newest places takes a step for each state on that chain.

Source: Blumer et al. 1985, The smallest automaton recognizing the subwords of a text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from ..kernels.arrays import Ints
from ..kernels.compiled import ZERO, compiled
from .text import BatchMemory, TextMemory, TextPolicy, TextTree

FIRST_ROOM = 256  # tokens
LONGEST_MATCH = 64  # ends of the text that propose a tree; longer ones count as this long. The published code's depth
MOST_GROWN = 64  # nodes of a tree that a GPU grows by itself; larger ones are the host's
ENTRIES = 7  # of `head`
STATES, EDGES, LAST, READ, MATCHED, FIRST, NEWEST = range(ENTRIES)
NONE = -1


class Automaton(NamedTuple):
    """Arrays of one automaton, with room for `len(text)` tokens.

    `head` holds the numbers of states and edges, the newest state, and the tokens read; then the state of the longest
    end that occurred before, and where its last token lies: first, and newest before the text's end. Per state: tokens
    of its longest string (`longest`), first and last place where its strings end, how many such places (`counts`), its
    newest edge. Per edge: source, token, target, and the source's edge before it. `buckets` holds edges by a hash of
    source and token; `chained` is the next edge in the same bucket.
    """

    head: Ints
    text: Ints
    longest: Ints
    links: Ints
    firsts: Ints
    newest: Ints
    counts: Ints
    edges: Ints
    sources: Ints
    labels: Ints
    targets: Ints
    others: Ints
    buckets: Ints
    chained: Ints


def memory_of(tokens: int) -> Ints:
    """Return the empty text's automaton as one array, with room for so many tokens.

    A forward before the draft empties the core's caches. One array then passes to a kernel several times faster than a
    named tuple of fourteen, whose type numba infers in Python.
    """
    states, edges = states_of(tokens), edges_of(tokens)
    buckets = 1 << (2 * edges).bit_length()
    memory = np.empty(ENTRIES + 1 + tokens + 6 * states + 5 * edges + buckets, dtype=np.int64)
    memory[ENTRIES] = tokens
    forget(memory)
    return memory


@compiled
def states_of(tokens: int) -> int:
    """Return the most states of a text of so many tokens."""
    return 2 * tokens + 2


@compiled
def edges_of(tokens: int) -> int:
    """Return the most edges of a text of so many tokens."""
    return 3 * tokens + 4


@compiled
def automaton_in(memory: Ints) -> Automaton:
    """Return the automaton that lies there."""
    tokens = memory[ENTRIES]
    states, edges, text = states_of(tokens), edges_of(tokens), ENTRIES + 1
    first, second = text + tokens, text + tokens + 6 * states
    return Automaton(
        memory[:ENTRIES],
        memory[text:first],
        memory[first : first + states],
        memory[first + states : first + 2 * states],
        memory[first + 2 * states : first + 3 * states],
        memory[first + 3 * states : first + 4 * states],
        memory[first + 4 * states : first + 5 * states],
        memory[first + 5 * states : second],
        memory[second : second + edges],
        memory[second + edges : second + 2 * edges],
        memory[second + 2 * edges : second + 3 * edges],
        memory[second + 3 * edges : second + 4 * edges],
        memory[second + 5 * edges :],
        memory[second + 4 * edges : second + 5 * edges],
    )


@compiled
def forget(memory: Ints) -> None:
    """Go back to the empty text."""
    clear(automaton_in(memory))


@compiled
def clear(a: Automaton) -> None:
    """Go back to the empty text."""
    a.head[:] = 0
    a.head[FIRST] = a.head[NEWEST] = NONE
    a.buckets[:] = NONE
    _new_state(a, ZERO, NONE)


@compiled
def read(a: Automaton, tokens: Ints) -> None:
    """Append tokens to the text, for which there must be room."""
    for token in tokens:
        _read_one(a, token)


@compiled
def edge_of(a: Automaton, state: int, token: int) -> int:
    """Return the edge of a state for a token, NONE where it has none."""
    edge = a.buckets[_bucket(a, state, token)]
    while edge != NONE and not (a.sources[edge] == state and a.labels[edge] == token):
        edge = a.chained[edge]
    return int(edge)


@compiled
def followed(a: Automaton, state: int) -> int:
    """Return how often a state's strings were followed by a token: always but at the text's end."""
    is_end = a.newest[state] == a.head[READ] - 1
    return int(a.counts[state]) - (1 if is_end else 0)


@compiled
def _read_one(a: Automaton, token: int) -> None:
    place = a.head[READ]
    a.text[place] = token
    a.head[READ] += 1
    state, before = _new_state(a, a.longest[a.head[LAST]] + 1, place), a.head[LAST]
    a.counts[state] = 1
    edge = edge_of(a, before, token)
    while edge == NONE:
        _new_edge(a, before, token, state)
        before = a.links[before]
        if before == NONE:
            break
        edge = edge_of(a, before, token)
    a.links[state] = 0 if before == NONE else _shortened(a, before, edge)
    a.head[LAST] = state
    _note_places(a, a.links[state], place)


@compiled
def _shortened(a: Automaton, before: int, edge: int) -> int:
    """Return the state of the strings of `before` plus the edge's token, split from longer ones."""
    target, token = a.targets[edge], a.labels[edge]
    if a.longest[target] == a.longest[before] + 1:
        return int(target)
    clone = _new_state(a, a.longest[before] + 1, a.firsts[target])
    a.newest[clone], a.counts[clone], a.links[clone] = a.newest[target], a.counts[target], a.links[target]
    other = a.edges[target]
    while other != NONE:
        _new_edge(a, clone, a.labels[other], a.targets[other])
        other = a.others[other]
    while edge != NONE and a.targets[edge] == target:
        a.targets[edge] = clone
        before = a.links[before]
        edge = NONE if before == NONE else edge_of(a, before, token)
    a.links[target] = clone
    return int(clone)


@compiled
def _note_places(a: Automaton, state: int, place: int) -> None:
    """Note the longest end that occurred before, and that it and all its ends also end here."""
    a.head[MATCHED] = state
    a.head[FIRST] = a.firsts[state] if state else NONE
    a.head[NEWEST] = a.newest[state] if state else NONE
    while state:
        a.counts[state] += 1
        a.newest[state] = place
        state = a.links[state]


@compiled
def _new_state(a: Automaton, longest: int, place: int) -> int:
    state = a.head[STATES]
    a.head[STATES] += 1
    a.longest[state], a.links[state], a.edges[state] = longest, NONE, NONE
    a.firsts[state] = a.newest[state] = place
    a.counts[state] = 0
    return int(state)


@compiled
def _new_edge(a: Automaton, source: int, token: int, target: int) -> None:
    edge, bucket = a.head[EDGES], _bucket(a, source, token)
    a.head[EDGES] += 1
    a.sources[edge], a.labels[edge], a.targets[edge] = source, token, target
    a.others[edge], a.edges[source] = a.edges[source], edge
    a.chained[edge], a.buckets[bucket] = a.buckets[bucket], edge


@compiled
def _bucket(a: Automaton, source: int, token: int) -> int:
    return (source * 1000003 + token * 8191) & (len(a.buckets) - 1)


@compiled
def most_behind(match: int, nodes: int, factor: int, offset: int) -> int:
    """Return the most nodes of a tree, and of a copy, behind a match of `match` tokens."""
    return int(min(nodes, factor * match + offset))


class AutomatonMemory(BatchMemory):
    """Texts with their suffix automata."""

    @staticmethod
    def empty(tokens: int) -> Ints:
        return memory_of(tokens)

    @staticmethod
    def clear(memory: Ints) -> None:
        forget(memory)


class AutomatonPolicy(TextPolicy):
    """A strategy that copies behind earlier occurrences of the text's end."""

    __slots__ = ()
    batch_memory: ClassVar[type[BatchMemory]] = AutomatonMemory

    @property
    def memory_key(self) -> str:
        return "automaton"

    def memory(self) -> SuffixText:
        return SuffixText()

    @abstractmethod
    def copying(self) -> Callable[[Ints, Ints], TextTree]:
        """Return a function that appends tokens to an automaton's memory and drafts behind it."""


class SuffixText(TextMemory):
    """A growing text whose drafts are a function of its tokens. Source: arXiv:2411.10666, arXiv:2411.04975."""

    def __init__(self) -> None:
        self._memory, self._room = memory_of(FIRST_ROOM), FIRST_ROOM
        self._asked: TextPolicy | None = None  # last; policies seldom change, and take long to be looked up
        self._copying: Callable[[Ints, Ints], TextTree]  # of that one
        self.length = 0  # tokens read

    def draft(self, policy: TextPolicy, fresh: Sequence[int] = (), held: Sequence[int] = ()) -> TextTree:
        assert isinstance(policy, AutomatonPolicy) and not held, "an automaton is asked about committed text"
        if policy is not self._asked:
            self._asked, self._copying = policy, policy.copying()
        placed = self._placed(fresh)
        return self._copying(self._memory, placed)

    def _placed(self, tokens: Sequence[int]) -> Ints:
        """Make room for more tokens; return what to read: the whole text where the automaton is new."""
        needed = self.length + len(tokens)
        fresh = np.array(tokens, dtype=np.int64)
        if needed > self._room:
            fresh = np.concatenate([automaton_in(self._memory).text[: self.length], fresh])
            self._memory, self._room = memory_of(2 * needed), 2 * needed
        self.length = needed
        return fresh
