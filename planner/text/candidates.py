"""The grids of policies that draft from the text: what needs no model, and no recording of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ..replay.positions import PositionResults
from ..replay.recorded import Text
from ..search.crossfit import EVERYWHERE, HALVES, folds_of, half_of
from ..strategies.cacheback import CachebackPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.text import TextPolicy
from .frozen import FrozenTable
from .lookup import Occurrence
from .results import cacheback_results, calibrated, lookup_results, suffix_results, suffix_tree_results

LOOKUP_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)
LOOKUP_NGRAMS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3))  # longest, shortest
SUFFIX_LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 40)
SUFFIX_BOUNDS = ((0, 48), (1, 0), (1, 1), (2, 0), (4, 1))  # factor and offset; the first is none at all
SUFFIX_MATCHES = (1, 2, 3, 5)  # shortest
OCCURRENCES: tuple[Occurrence, ...] = ("last", "first")
TREE_NODES = (3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 48)
TREE_BOUNDS = ((1, 0), (4, 1), (8, 0))
TREE_CHANCES = (0.02, 0.1, 0.2, 0.35, 0.5)
TABLES = ((1, 1, 8), (1, 2, 4), (1, 3, 8), (2, 3, 4))  # tokens of a leader and of a follower, followers
TABLE_NODES = (3, 4, 6, 8, 12, 16, 24, 33, 48)
TABLE_CHANCES = (0.0, 0.05, 0.15, 0.35)
Graded = tuple[TextPolicy, PositionResults, int]  # a policy, its results, and the half its chances were made from


def text_drafted(texts: Sequence[Text], most_tokens: int, frozen: Sequence[FrozenTable] = ()) -> Iterator[Graded]:
    """Yield every lookup, suffix chain, suffix tree and Cacheback table.

    Args:
        texts: recorded.
        most_tokens: that one verify can feed.
        frozen: tables that stand behind the texts' own.
    """
    lengths = [length for length in LOOKUP_LENGTHS if length < most_tokens]
    for max_ngram, min_ngram in LOOKUP_NGRAMS if lengths else ():
        yield from _everywhere(lookup_results(texts, max_ngram, min_ngram, lengths))
    chains = _suffixes(most_tokens)
    yield from _everywhere(suffix_results(texts, chains)) if chains else ()
    trees = _suffix_trees(most_tokens)
    yield from _everywhere(suffix_tree_results(texts, trees)) if trees else ()
    for table in _tables(frozen) if most_tokens >= min(TABLE_NODES) else ():
        yield from _of_table(texts, table, most_tokens)


def _everywhere(found: Iterator[tuple[TextPolicy, PositionResults]]) -> Iterator[Graded]:
    return ((policy, results, EVERYWHERE) for policy, results in found)


def _suffixes(most_tokens: int) -> list[SuffixPolicy]:
    """Return the chains of the grid, without those whose bound is never reached by their length."""
    lengths = [length for length in SUFFIX_LENGTHS if length < most_tokens]
    return [
        SuffixPolicy(length=length, factor=factor, offset=offset, min_match=least, occurrence=which)
        for length, (factor, offset), least, which in product(lengths, SUFFIX_BOUNDS, SUFFIX_MATCHES, OCCURRENCES)
        if factor == 0 or factor * least + offset < length
    ]


def _suffix_trees(most_tokens: int) -> list[SuffixTreePolicy]:
    sizes = [nodes for nodes in TREE_NODES if nodes <= most_tokens]
    return [
        SuffixTreePolicy(nodes=nodes, factor=factor, offset=offset, least_chance=chance)
        for nodes, (factor, offset), chance in product(sizes, TREE_BOUNDS, TREE_CHANCES)
    ]


def _tables(frozen: Sequence[FrozenTable]) -> list[CachebackPolicy]:
    """Return the texts' own tables alone, then each frozen one behind the texts' own of as many tokens."""
    own = [CachebackPolicy(leader_tokens=leader, follower_tokens=tokens, followers=n) for leader, tokens, n in TABLES]
    both = [
        CachebackPolicy(leader_tokens=one.leader_tokens, follower_tokens=one.follower_tokens, frozen=one)
        for one in frozen
    ]
    return own + both


def _of_table(texts: Sequence[Text], table: CachebackPolicy, most_tokens: int) -> Iterator[Graded]:
    """Yield the trees of one table: by recency, and calibrated on each half of the texts."""
    yield from _everywhere(cacheback_results(texts, _sized(table, most_tokens)))
    for half in range(HALVES):
        own = calibrated(table, texts, half_of(folds_of(len(texts))) == half)
        for policy, results in cacheback_results(texts, _sized(own, most_tokens)):
            yield policy, results, half


def _sized(table: CachebackPolicy, most_tokens: int) -> list[CachebackPolicy]:
    sizes = [nodes for nodes in TABLE_NODES if nodes <= most_tokens]
    return [replace(table, nodes=nodes, least_chance=chance) for nodes, chance in product(sizes, TABLE_CHANCES)]
