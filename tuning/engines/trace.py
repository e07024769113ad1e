"""A drafter's acceptance trace from the tokens it would draft along a text, without confidences (-inf)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import MeasurementError
from ...planner.records.recording import Text
from ...profiler.records.acceptance import MISS, PromptTrace


def prompt_trace(text: Text, drafted: Sequence[int]) -> PromptTrace:
    """Return a trace of one child per position, from `next_tokens`; MeasurementError unless each has a token."""
    if len(drafted) != text.positions:
        raise MeasurementError(f"{len(drafted)} drafted tokens do not fill the {text.positions} positions of a text")
    is_right = np.array(drafted) == np.array(text.continuation[1:])
    hits = np.where(is_right, 0, MISS).astype(np.uint8)
    return PromptTrace(
        prompt=text.prompt,
        continuation=text.continuation,
        next_rank=hits,
        offsets=np.arange(text.positions + 1, dtype=np.int32),
        parent=np.full(text.positions, -1, dtype=np.int16),
        rank=np.zeros(text.positions, dtype=np.uint8),
        log_probs=np.full((text.positions, 1), -np.inf, dtype=np.float32),
        hit_rank=hits.copy(),
    )
