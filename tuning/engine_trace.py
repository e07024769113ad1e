"""A drafter's acceptance trace from the rounds that an engine told: chains replay from it as from our own recording.

A round that kept k of its drafts says of k + 1 positions whether the drafter's own token was the target's: k times yes,
then no, unless it drafted no more than it kept. Then the next position is open; it counts as a hit, which it mostly is
behind so long a run of hits, and `open_share` tells how often that was.

Such a trace holds no confidences (-inf), and so nothing for policies that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import MeasurementError
from ..profiler.records.acceptance import MISS, PromptTrace
from ..runtime.engines.measured import EngineText


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPrompt:
    """One text as a trace, and how many of its positions are open."""

    trace: PromptTrace
    open_positions: int


def told_prompt(prompt: Sequence[int], text: EngineText, length: int) -> ToldPrompt:
    """Return one text's trace.

    Args:
        prompt: token ids.
        text: with its rounds, of a chain without early ends.
        length: of the chain.

    Raises:
        MeasurementError: the engine did not tell the rounds, or a round kept more than the chain's length.
    """
    if not text.kept:
        raise MeasurementError(
            "the engine did not tell the rounds of a text; record the drafter with: spectune profile on its folder"
        )
    positions = len(text.tokens) - 1
    hits, row, unknown = np.zeros(positions, dtype=np.uint8), 0, 0
    for kept in text.kept:
        drafted = min(length, positions - row - 1)
        if kept > drafted:
            raise MeasurementError(f"a round kept {kept} tokens of {drafted} drafted; these are not a chain's rounds")
        if kept < drafted:
            hits[row + kept] = MISS
        elif drafted == length:
            unknown += 1
        else:
            hits[row + kept] = MISS  # the text's last token: no round ever drafts it
        row += kept + 1
    return ToldPrompt(trace=chain_trace(prompt, text.tokens, hits), open_positions=unknown)


def chain_trace(prompt: Sequence[int], continuation: Sequence[int], hits: np.ndarray) -> PromptTrace:
    """Return a trace of one child per position, its confidence unknown.

    Args:
        prompt, continuation: token ids.
        hits: (positions,) uint8, 0 where the drafter's token is the target's, MISS elsewhere.
    """
    positions = len(continuation) - 1
    return PromptTrace(
        prompt=tuple(prompt),
        continuation=tuple(continuation),
        next_rank=hits,
        offsets=np.arange(positions + 1, dtype=np.int32),
        parent=np.full(positions, -1, dtype=np.int16),
        rank=np.zeros(positions, dtype=np.uint8),
        log_probs=np.full((positions, 1), -np.inf, dtype=np.float32),
        hit_rank=hits.copy(),
    )
