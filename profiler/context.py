"""Acceptance by how much text stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import MeasurementError
from .records.acceptance import MISS, AcceptanceTrace

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContextBucket:
    """The positions with low <= context < high; context is what the target's cache holds before a round.

    Attributes:
        low, high: tokens.
        positions: how many there are.
        by_rank: (children,), unconditional share whose next token has rank r; NaN where there are no positions.
    """

    low: int
    high: int
    positions: int
    by_rank: Floats


def acceptance_by_context(trace: AcceptanceTrace, edges: Sequence[int]) -> tuple[ContextBucket, ...]:
    """Return the acceptance by rank within ranges of context length.

    Args:
        trace: of one drafter.
        edges: tokens, ascending, at least 2; positions outside the first and the last are left out.

    Raises:
        MeasurementError: the edges do not ascend.
    """
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise MeasurementError(f"context edges must ascend, at least 2, got {list(edges)}")
    contexts = np.concatenate([prompt.contexts for prompt in trace.prompts])
    ranks = np.concatenate([prompt.next_rank for prompt in trace.prompts])
    buckets = np.digitize(contexts, edges)
    found = []
    for place, (low, high) in enumerate(pairwise(edges), start=1):
        counts = np.bincount(ranks[buckets == place], minlength=MISS + 1)
        total = int(counts.sum())
        shares = counts[: trace.children] / total if total else np.full(trace.children, np.nan)
        found.append(ContextBucket(low=low, high=high, positions=total, by_rank=shares))
    return tuple(found)
