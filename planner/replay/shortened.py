"""Recorded texts as answers of fewer tokens: the waste of their last rounds is then replayed, not guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from ..inputs import PlanInputs
from ..records.recording import Text


def answer_tokens(inputs: PlanInputs, new_tokens: int | None) -> int:
    """Return the tokens of the longest answer to plan for: at most `new_tokens`, and at most those recorded."""
    longest = max(len(text.continuation) for text in inputs.texts)
    return longest if new_tokens is None else min(new_tokens, longest)


def shortened(inputs: PlanInputs, new_tokens: int | None) -> PlanInputs:
    """Return a plan's inputs with answers cut to `new_tokens`, 2 or more; None leaves them as recorded."""
    longest = answer_tokens(inputs, new_tokens)
    if inputs.lossy:
        inputs = replace(inputs, lossy=tuple(run.shortened(longest) for run in inputs.lossy))
    if all(len(text.continuation) <= longest for text in inputs.texts):
        return inputs
    texts = tuple(Text(prompt=text.prompt, continuation=text.continuation[:longest]) for text in inputs.texts)
    drafters = tuple(replace(drafter, trace=_cut(drafter.trace, longest)) for drafter in inputs.drafters)
    return replace(inputs, texts=texts, drafters=drafters)


def _cut(trace: AcceptanceTrace, new_tokens: int) -> AcceptanceTrace:
    return replace(trace, prompts=tuple(_cut_text(prompt, new_tokens) for prompt in trace.prompts))


def _cut_text(prompt: PromptTrace, new_tokens: int) -> PromptTrace:
    """Return the first positions of a text; behind the new end there is no target token, so nothing is right."""
    positions = min(prompt.positions, new_tokens - 1)
    expansions = int(prompt.offsets[positions])
    parent, hit_rank = prompt.parent[:expansions], prompt.hit_rank[:expansions].copy()
    at = np.repeat(np.arange(positions), np.diff(prompt.offsets[: positions + 1]))
    hit_rank[at + _depths(parent, prompt.offsets[at]) >= positions] = MISS
    return PromptTrace(
        prompt=prompt.prompt,
        continuation=prompt.continuation[: positions + 1],
        next_rank=prompt.next_rank[:positions],
        offsets=prompt.offsets[: positions + 1],
        parent=parent,
        rank=prompt.rank[:expansions],
        log_probs=prompt.log_probs[:expansions],
        hit_rank=hit_rank,
    )


def _depths(parent: NDArray[np.int16], starts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return how many nodes are above each expansion, by `parent` (E,) within a position and each one's `starts`."""
    depths, above = np.zeros(len(parent), dtype=np.int64), starts + parent
    while True:
        deeper = np.where(parent >= 0, depths[above] + 1, 0)
        if np.array_equal(deeper, depths):
            return depths
        depths = deeper
