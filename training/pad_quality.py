"""How well pivot chances separate pivots from other tokens, with intervals; and the threshold for a recall."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

import numpy as np

from ..errors import TrainingError
from ..planner.kernels.arrays import Bools, Floats, Ints
from ..planner.lossy.quality import share_interval

RESAMPLES = 1000
CONFIDENCE = 0.95
DIGITS = 4  # of a threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """A threshold's effect on labelled tokens: it rejects chances from there on.

    `recall` is the share of rejected pivots, `passed` of accepted other tokens, with 95 % intervals; None without any.
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
    """Return a 95 % interval of the AUROC by resampling problems, since tokens of one problem are alike.

    All arrays are (n,). None with tokens of one class only; resamples with one class only are left out.
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
    """Return a threshold's effect on labelled tokens."""
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

    It is rounded down, so that writing it with few digits accepts no further pivot; a chance equal to it is rejected.
    Without pivots it is 0, which accepts nothing. A recall outside (0, 1] is a TrainingError.
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
