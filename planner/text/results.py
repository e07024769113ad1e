"""What policies that draft from the text would have kept at every position of the recorded texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Small
from ..kernels.automaton import memory_of
from ..kernels.cacheback import Grid as TableGrid
from ..kernels.cacheback import Limits, count_chances, table_sweep, trie_of
from ..kernels.lookup import Search, lookup_sweep
from ..kernels.ranking import ranking_of
from ..kernels.suffix import Grid as TreeGrid
from ..kernels.suffix import Texts, suffix_sweep, tree_sweep
from ..records.draft import Bools, Ints
from ..replay.positions import PositionResults, same_everywhere
from ..replay.recorded import Text
from ..strategies.cacheback import HOPS, CachebackPolicy
from ..strategies.lookup import LookupPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..strategies.text import TextPolicy
from .cacheback import chances_of, tables_of
from .image_ids import said
from .lookup import Occurrence

Floats = NDArray[np.float64]


def text_results(policy: TextPolicy, texts: Sequence[Text]) -> PositionResults:
    """Return the results of one policy that drafts from the text."""
    match policy:
        case LookupPolicy():
            sizes = policy.max_ngram, policy.min_ngram
            ((_, results),) = lookup_results(texts, *sizes, [policy.length], policy.occurrence_in_text)
        case SuffixPolicy():
            ((_, results),) = suffix_results(texts, [policy])
        case SuffixTreePolicy():
            ((_, results),) = suffix_tree_results(texts, [policy])
        case CachebackPolicy():
            ((_, results),) = cacheback_results(texts, [policy])
    return results


def lookup_results(
    texts: Sequence[Text], max_ngram: int, min_ngram: int, lengths: Sequence[int], occurrence: Occurrence = "last"
) -> Iterator[tuple[LookupPolicy, PositionResults]]:
    """Yield every length's results; the text is searched once, a shorter draft is a longer one's beginning."""
    policies = [
        LookupPolicy(length=length, max_ngram=max_ngram, min_ngram=min_ngram, occurrence=occurrence)
        for length in lengths
    ]
    laid = _laid_out(texts)
    found, right = np.zeros((2, laid.rows), dtype=np.int64)
    lookup_sweep(*laid.texts, Search(max_ngram, min_ngram, max(lengths), occurrence == "first"), found, right)
    for policy in policies:
        yield policy, _results(np.minimum(right, policy.length), 1 + np.minimum(found, policy.length))


def suffix_results(
    texts: Sequence[Text], policies: Sequence[SuffixPolicy]
) -> Iterator[tuple[SuffixPolicy, PositionResults]]:
    """Yield every policy's results; the texts are read once."""
    laid = _laid_out(texts)
    matches, right = np.zeros(laid.rows, dtype=np.int64), np.zeros((2, laid.rows), dtype=np.int64)
    most = max(policy.length for policy in policies)
    suffix_sweep(laid.texts, memory_of(laid.longest), most, matches, right)
    for policy in policies:
        which = 0 if policy.occurrence == "first" else 1
        bound = np.minimum(policy.length, policy.factor * matches + policy.offset) * (matches >= policy.min_match)
        yield policy, _results(np.minimum(right[which], bound), 1 + bound)


def suffix_tree_results(
    texts: Sequence[Text], policies: Sequence[SuffixTreePolicy]
) -> Iterator[tuple[SuffixTreePolicy, PositionResults]]:
    """Yield every policy's results; the texts are read once and one tree is grown behind each match."""
    laid, most = _laid_out(texts), max(policy.nodes for policy in policies) - 1
    grid = TreeGrid(
        nodes=np.array([one.nodes - 1 for one in policies]),
        factors=np.array([one.factor for one in policies]),
        offsets=np.array([one.offset for one in policies]),
        matches=np.array([one.min_match for one in policies]),
        leasts=np.array([one.least_chance for one in policies]),
        scores=np.array([one.least_score for one in policies]),
    )
    accepted, sizes = np.zeros((2, len(policies), laid.rows), dtype=np.int16)  # of many trees at once
    rooms = ranking_of(most), np.zeros(most, dtype=np.int64)
    tree_sweep(laid.texts, memory_of(laid.longest), grid, *rooms, accepted, sizes)
    yield from zip(policies, map(_results, accepted, sizes), strict=True)


def cacheback_results(
    texts: Sequence[Text], policies: Sequence[CachebackPolicy]
) -> Iterator[tuple[CachebackPolicy, PositionResults]]:
    """Yield the results of policies that differ in nodes and least chance alone; the texts are read once."""
    first = policies[0]
    alike = [replace(one, nodes=first.nodes, least_chance=first.least_chance) for one in policies]
    assert set(alike) == {first}, "one growth tells about policies of one table, depth and calibration"
    laid, most = _laid_out(texts), max(policy.nodes for policy in policies) - 1
    grid = TableGrid(np.array([one.nodes - 1 for one in policies]), np.array([one.least_chance for one in policies]))
    limits = Limits(most, first.max_depth, float(grid.leasts.min()))
    accepted, sizes = np.zeros((2, len(policies), laid.rows), dtype=np.int16)  # of many trees at once
    tables = tables_of(first)
    rooms = ranking_of(most), trie_of(tables), np.zeros(most, dtype=np.int64)
    table_sweep(laid.texts, tables, chances_of(first), limits, grid, *rooms, accepted, sizes)
    yield from zip(policies, map(_results, accepted, sizes), strict=True)


def calibrated(policy: CachebackPolicy, texts: Sequence[Text], chosen: Bools) -> CachebackPolicy:
    """Return a policy with chances as its tables have them along the chosen texts; what was seen once counts as half.

    Args:
        policy: whose tables are meant.
        texts: recorded.
        chosen: (texts,).
    """
    laid = _laid_out(texts)
    seen, right = np.zeros((2, HOPS, *policy.ranks_and_places))
    tables = tables_of(policy)
    count_chances(laid.texts, chosen, tables, trie_of(tables), seen, right)
    shares: Floats = right / (seen + 1.0)
    return replace(policy, chances=tuple(np.round(shares, 4).ravel().tolist()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LaidOut:
    texts: Texts
    rows: int
    longest: int


def _laid_out(texts: Sequence[Text]) -> _LaidOut:
    begun = [tuple(said(text.prompt)) for text in texts]
    lengths = [len(own) + len(text.continuation) for own, text in zip(begun, texts, strict=True)]
    whole = chain.from_iterable(own + text.continuation for own, text in zip(begun, texts, strict=True))
    tokens = np.fromiter(whole, np.int64, sum(lengths))
    prompts = np.array([len(own) + 1 for own in begun])
    return _LaidOut(
        texts=Texts(tokens, np.cumsum([0, *lengths]), prompts),
        rows=sum(len(text.continuation) for text in texts),
        longest=max(lengths),
    )


def _results(accepted: Ints | Small, sizes: Ints | Small) -> PositionResults:
    return PositionResults(
        accepted=accepted.astype(np.int64, copy=False),
        sizes=sizes.astype(np.int64, copy=False),
        censored=np.zeros(len(accepted), dtype=np.bool_),
        widths=same_everywhere(()),
    )
