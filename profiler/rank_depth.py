"""How often the target's token is the drafter's child of a rank, by depth, with intervals over prompts.

Notation, at a position t: the target's path has *reached* depth d if each of the first d tokens that follow is among
the drafter's `ranks` best children of the node before.

    unconditional[d, r] = share of positions whose path reached depth d - 1 and goes on with the child of rank r
    conditional[d, r]   = the same among the positions whose path reached depth d - 1
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..errors import MeasurementError
from .records.acceptance import AcceptanceTrace, PromptTrace
from .scored_nodes import owners_of

UNKNOWN = -1  # beyond the end of the text, or behind a node that was not recorded
RESAMPLES = 999
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rates:
    """Shares with intervals.

    Attributes:
        values: (depths, ranks); NaN where no position counts.
        low, high: (depths, ranks), ends of the interval; 0 and 1 where some resample has no position that counts.
        counts: (depths,), positions that count.
    """

    values: Floats
    low: Floats
    high: Floats
    counts: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankDepth:
    """Acceptance by depth (row 0 is depth 1) and rank, and the level of its intervals."""

    unconditional: Rates
    conditional: Rates
    level: float


def rank_depth_acceptance(
    trace: AcceptanceTrace, depths: int, ranks: int, *, level: float = 0.9, seed: int = 0
) -> RankDepth:
    """Return acceptance by rank and depth, with bootstrap intervals over prompts.

    Args:
        trace: of one drafter.
        depths: how far the target's path is followed.
        ranks: children of a node that count.
        level: of the intervals.
        seed: of the resampling.

    Raises:
        MeasurementError: fewer than 2 prompts, or more ranks than the trace records.

    Source: percentile bootstrap, Efron and Tibshirani 1993, Ch. 13.
    """
    if len(trace.prompts) < 2:
        raise MeasurementError("intervals over prompts need at least 2 of them; record more")
    if depths < 1 or not 1 <= ranks <= trace.children or not 0.0 < level < 1.0:
        raise MeasurementError(
            f"need depths >= 1, ranks in 1..{trace.children} and a level in (0, 1), got {depths}, {ranks} and {level}"
        )
    tallies = [_tally(path_ranks(prompt, depths, trace.prefix_exact), ranks) for prompt in trace.prompts]
    hits, known, reached = (np.stack(parts, axis=-1) for parts in zip(*tallies, strict=True))
    return RankDepth(
        unconditional=_rates(hits, known, level, seed), conditional=_rates(hits, reached, level, seed), level=level
    )


def path_ranks(prompt: PromptTrace, depths: int, prefix_exact: bool) -> Ints:
    """Return (positions, depths): which child the target takes at depth 1, 2, ... of its own path.

    MISS where it is none of the recorded children; behind that, and behind an expansion that was not recorded,
    UNKNOWN. With a prefix-exact drafter the node at depth d of a path is the root d positions later.
    """
    found = np.full((prompt.positions, depths), UNKNOWN, dtype=np.int64)
    if prefix_exact:
        for depth in range(min(depths, prompt.positions)):
            found[: prompt.positions - depth, depth] = prompt.next_rank[depth:]
        return found
    for depth, (positions, ranks) in enumerate(islice(path_steps(prompt), depths)):
        found[positions, depth] = ranks
    return found


def path_steps(prompt: PromptTrace) -> Iterator[tuple[Ints, Ints]]:
    """Yield for depth 1, 2, ... the positions whose tree holds the target's path so far, and the child it takes there.

    As long as any does, so that all steps together are no larger than the recording. MISS as in `path_ranks`.
    """
    child = np.full((len(prompt.parent), prompt.children + 1), UNKNOWN, dtype=np.int64)  # the last of each: none
    inner = np.flatnonzero(prompt.parent >= 0)
    child[owners_of(prompt)[inner], prompt.rank[inner]] = inner
    hits, nodes = prompt.hit_rank.astype(np.int64), prompt.offsets[:-1].astype(np.int64)
    positions, depth = np.arange(prompt.positions), 0
    while len(positions):
        ranks = hits[nodes]
        yield positions, ranks
        depth += 1
        below = child[nodes, np.minimum(ranks, prompt.children)]
        stays = (below != UNKNOWN) & (positions + depth < prompt.positions)
        positions, nodes = positions[stays], below[stays]


def _tally(found: Ints, ranks: int) -> tuple[Ints, Ints, Ints]:
    """Return (depths, ranks) hits, (depths,) positions whose fate there is known, and (depths,) that reached it."""
    positions, depths = found.shape
    hits, known, reached = (np.zeros(shape, dtype=np.int64) for shape in ((depths, ranks), depths, depths))
    is_on_path, has_left = np.ones(positions, dtype=np.bool_), np.zeros(positions, dtype=np.bool_)
    for depth in range(depths):
        is_inside = np.arange(positions) + depth < positions
        is_told = is_on_path & (found[:, depth] != UNKNOWN)
        hits[depth] = np.bincount(found[is_told, depth], minlength=ranks)[:ranks]
        known[depth], reached[depth] = (is_told | (has_left & is_inside)).sum(), is_told.sum()
        is_on_path = is_told & (found[:, depth] < ranks)
        has_left |= is_told & ~is_on_path
    return hits, known, reached


def _rates(hits: Ints, counts: Ints, level: float, seed: int) -> Rates:
    """Return hits / counts over the last axis, the prompts, which are drawn with replacement for the intervals.

    Args:
        hits: (depths, ranks, prompts).
        counts: (depths, prompts).
    """
    from scipy.stats import DegenerateDataWarning, bootstrap

    each = np.broadcast_to(counts[:, None], hits.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # a resample without positions; its interval is open
        interval = bootstrap(
            (hits, each),
            _share,
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=RESAMPLES,
            confidence_level=level,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return Rates(
        values=_share(hits, each, axis=-1),
        low=np.asarray(np.nan_to_num(interval.low, nan=0.0)),
        high=np.asarray(np.nan_to_num(interval.high, nan=1.0)),
        counts=counts.sum(axis=-1),
    )


def _share(hits: Ints, counts: Ints, axis: int) -> Floats:
    some, all_ = hits.sum(axis=axis), counts.sum(axis=axis)
    return np.where(all_ > 0, some / np.maximum(all_, 1), np.nan)
