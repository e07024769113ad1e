"""How well pivot chances tell pivots from the rest, with intervals; and which threshold keeps nearly all pivots out."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray

from ..errors import TrainingError
from ..planner.lossy.quality import share_interval

RESAMPLES = 1000
CONFIDENCE = 0.95
DIGITS = 4  # of a threshold

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """What a threshold does to labelled tokens.

    Attributes:
        threshold: pivot chance from which on a token is rejected.
        recall: share of pivots that are rejected; None without any.
        recall_95: its interval.
        passed: share of the others that are let be; None without any.
        passed_95: its interval.
    """

    threshold: float
    recall: float | None
    recall_95: tuple[float, float] | None
    passed: float | None
    passed_95: tuple[float, float] | None


def auroc(chances: Floats, is_pivot: Bools) -> float | None:
    """Return how often a pivot has a higher chance than another token, ties counting half; None with one class only.

    O(n log n): the ranks of Mann and Whitney 1947.
    """
    pivots, others = int(is_pivot.sum()), int((~is_pivot).sum())
    if not pivots or not others:
        return None
    _, places, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]  # of equal values the mean of their places, from 1
    return float((ranks[is_pivot].sum() - pivots * (pivots + 1) / 2.0) / (pivots * others))


def auroc_interval(chances: Floats, is_pivot: Bools, problems: Ints, seed: int) -> tuple[float, float] | None:
    """Return a 95 % interval of the AUROC by drawing problems anew, as tokens of one problem are alike.

    Args:
        chances: (n,), that each token is a pivot.
        is_pivot: (n,).
        problems: (n,), the problem each token comes from.
        seed: of the draws.

    Returns:
        None with tokens of one class only. Draws with one class only are left out.
    """
    if auroc(chances, is_pivot) is None:
        return None
    rng, own = np.random.default_rng(seed), np.unique(problems)
    members = {problem: np.flatnonzero(problems == problem) for problem in own.tolist()}
    found = []
    for _ in range(RESAMPLES):
        drawn = rng.choice(own, size=len(own)).tolist()
        rows = np.concatenate([members[problem] for problem in drawn])
        value = auroc(chances[rows], is_pivot[rows])
        if value is not None:
            found.append(value)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(found, [tail, 100.0 - tail])
    return float(low), float(high)


def at_threshold(chances: Floats, is_pivot: Bools, threshold: float) -> AtThreshold:
    """Return what a threshold does to labelled tokens."""
    rejected = chances >= threshold
    recall = _share(rejected[is_pivot])
    passed = _share(~rejected[~is_pivot])
    return AtThreshold(
        threshold=threshold,
        recall=None if recall is None else recall[0],
        recall_95=None if recall is None else recall[1],
        passed=None if passed is None else passed[0],
        passed_95=None if passed is None else passed[1],
    )


def threshold_of_recall(chances: Floats, is_pivot: Bools, recall: float) -> float:
    """Return the largest threshold in [0, 1] of four digits that rejects at least that share of the pivots.

    People write it down: with digits left out it must not let one more pivot be. A token whose chance is the threshold
    is rejected. With no pivot among the tokens nothing is known, and the threshold is 0, which lets nothing be.

    Raises:
        TrainingError: the recall is not in (0, 1].
    """
    if not 0.0 < recall <= 1.0:
        raise TrainingError(f"a recall must be in (0, 1], got {recall}")
    own = np.sort(chances[is_pivot])[::-1]
    if not len(own):
        return 0.0
    wanted = int(np.ceil(recall * len(own) - 1e-9))
    found = Decimal(repr(float(own[wanted - 1])))
    return float(found.quantize(Decimal(1).scaleb(found.adjusted() - DIGITS + 1), ROUND_FLOOR))


def _share(hits: Bools) -> tuple[float, tuple[float, float]] | None:
    if not len(hits):
        return None
    return float(hits.mean()), share_interval(int(hits.sum()), len(hits), CONFIDENCE)
