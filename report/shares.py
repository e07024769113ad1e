"""How often the target's token is among the drafter's first choices, by depth and by rank, with intervals over prompts.

Notation: H is (prompts, depths, ranks), the positions where the drafter's tree holds the target's text to a depth (0 is
the root) and the next token has that rank among the children; N is (prompts, depths), those positions in all. Positions
whose truth lies beyond the recorded text do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..profiler.records.acceptance import AcceptanceTrace, PromptTrace
from ..profiler.scored_nodes import path_steps

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hits:
    """Counts of one trace."""

    hits: Ints  # H: (prompts, depths, ranks)
    positions: Ints  # N: (prompts, depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of positions, conditional on the tree holding the target's text so far, and its interval."""

    value: float
    low: float
    high: float
    positions: int


def count_hits(trace: AcceptanceTrace) -> Hits:
    """Return the counts of a trace, to the depth its trees reach along the target's text anywhere."""
    prompts = [_of_prompt(prompt) for prompt in trace.prompts]
    depths = max(len(hits) for hits in prompts)
    hits = np.zeros((len(prompts), depths, trace.children + 1), dtype=np.int64)  # the last rank is a miss
    for place, found in enumerate(prompts):
        hits[place, : len(found)] = found
    return Hits(hits=hits[..., :-1], positions=hits.sum(axis=2))


def share_of(hits: Ints, positions: Ints, rng: np.random.Generator) -> Share:
    """Return the share of positions, (prompts,) not all 0, that are hits, with an interval.

    It is the percentile bootstrap over prompts, since positions of one text are alike. A single prompt tells nothing of
    others: there it is Wilson's over positions, as if independent.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, Sec. 13.3; Wilson 1927, JASA 22(158).
    """
    total = int(positions.sum())
    low, high = _over_prompts(hits, positions, rng) if len(hits) > 1 else _over_positions(int(hits.sum()), total)
    return Share(value=float(hits.sum()) / total, low=low, high=high, positions=total)


def _of_prompt(prompt: PromptTrace) -> Ints:
    """Return (depths, ranks + 1) counts; the last rank is a miss."""
    steps = (np.minimum(ranks, prompt.children) for _, ranks in path_steps(prompt))
    return np.array([np.bincount(ranks, minlength=prompt.children + 1) for ranks in steps])


def _over_prompts(hits: Ints, positions: Ints, rng: np.random.Generator) -> tuple[float, float]:
    drawn = rng.multinomial(
        len(hits), np.full(len(hits), 1.0 / len(hits)), size=RESAMPLES
    )  # times each prompt is drawn
    total = drawn @ positions
    shares = (drawn @ hits)[total > 0] / total[total > 0]
    low, high = np.quantile(shares, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return float(low), float(high)


def _over_positions(hits: int, total: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(hits, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)
