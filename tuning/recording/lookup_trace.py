"""What prompt lookup would propose along the target's own text: the recording of a target that has no drafter.

No plan depends on it, as lookup replays from the texts. It holds these, and shows how repetitive a workload is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...planner.records.image_ids import said
from ...planner.strategies.lookup import find_continuation
from ...profiler.records.acceptance import MISS, PromptTrace
from ...runtime.batch.sequence import Request

LONGEST_NGRAM = 3  # `find_continuation`'s own default


def lookup_trace(request: Request, continuation: Sequence[int]) -> PromptTrace:
    """Return lookup's proposal at every position of one text, certain if any; at least 2 tokens continue it."""
    begun = said(request.prompt)
    text = [*begun, *continuation]
    ends = range(len(begun) + 1, len(text))  # committed tokens at each position
    found = [find_continuation(text[:end], 1, LONGEST_NGRAM) for end in ends]
    hits = [0 if proposed == [text[end]] else MISS for proposed, end in zip(found, ends, strict=True)]
    scores = [[0.0 if proposed else -math.inf] for proposed in found]
    return PromptTrace(
        prompt=request.prompt,
        continuation=tuple(continuation),
        next_rank=np.array(hits, dtype=np.uint8),
        offsets=np.arange(len(hits) + 1, dtype=np.int32),
        parent=np.full(len(hits), -1, dtype=np.int16),
        rank=np.zeros(len(hits), dtype=np.uint8),
        log_probs=np.array(scores, dtype=np.float32),
        hit_rank=np.array(hits, dtype=np.uint8),
    )
