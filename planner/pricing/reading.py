"""What reading prompts costs: every request pays once, for the target and for each model that drafts.

While a prompt is read no sequence of the batch decodes, so each decoded token pays, beside its share of rounds,

    read_ms / decoded tokens of an answer        milliseconds of the whole device, whatever the batch

The first token comes with the prompt; answers that end early decode fewer tokens for the same reading. The target reads
in any case, a drafter only where it drafts: this decides for or against drafters where prompts are long and answers
short. With prefix caching both may have read the beginning of a prompt before.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...profiler.records.excess import mean_over_median
from ...profiler.records.surface import LatencySurface
from ..inputs import LOOKUP, PlanInputs
from ..records.recording import Text
from ..strategies import TreePolicy, drafting
from ..strategies.stack import StackPolicy
from .cells import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCosts:
    """Milliseconds of reading one prompt of a cell, and the tokens of its answer."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, not read again
    new_tokens: int | None = None  # most of an answer; None where open, and then nothing is chosen by it
    decoded_tokens: float | None = None  # of an answer on average; None likewise
    target_ms: float | None = None  # None where it was not timed
    drafts_ms: Mapping[str, float] = field(default_factory=dict)  # by name of the drafters that were timed

    def drafter_ms(self, policy: TreePolicy, drafter: str | None) -> float | None:
        """Return what all models that draft take, 0 where none does; None where one of them was not timed."""
        drafts = drafting(policy)
        names = drafts.models if isinstance(drafts, StackPolicy) else (drafter,)
        models = [name for name in names if name not in (None, LOOKUP)]
        known = [self.drafts_ms[name] for name in models if name in self.drafts_ms]
        return sum(known) if len(known) == len(models) else None

    def share_ms(self, policy: TreePolicy, drafter: str | None) -> float:
        """Return what a decoded token pays for the drafters' reading; 0 where answers or times are not known."""
        read_ms = self.drafter_ms(policy, drafter) or 0.0
        return 0.0 if self.decoded_tokens is None else read_ms / self.decoded_tokens


def reading_costs(inputs: PlanInputs, cell: Cell, new_tokens: int | None, cached_share: float = 0.0) -> ReadingCosts:
    """Return what reading prompts costs in a cell, as far as it was timed.

    At the cell's context half an answer has been decoded, on average; with `new_tokens` None prompts are as long as the
    context. `cached_share` of a prompt is not read again; its last token always is.
    """
    prompt = max(cell.context - (new_tokens or 0) // 2, 1)
    cached = min(int(prompt * cached_share), prompt - 1)
    own, readings, excess = inputs.readings.get(inputs.target.key), inputs.readings, mean_over_median(inputs.verify)
    return ReadingCosts(
        prompt_tokens=prompt,
        cached_tokens=cached,
        new_tokens=new_tokens,
        decoded_tokens=None if new_tokens is None else decoded_tokens(inputs.texts, new_tokens),
        target_ms=None if own is None else reading_ms(own, prompt, excess, cached),
        drafts_ms={
            drafter.name: reading_ms(readings[drafter.model.key], prompt, excess, cached)
            for drafter in inputs.drafters
            if drafter.model.key in readings
        },
    )


def decoded_tokens(texts: Sequence[Text], new_tokens: int) -> float:
    """Return mean decoded tokens of answers of at most `new_tokens`; the longest recorded texts would have gone on."""
    most, longest = new_tokens - 1, max(text.positions for text in texts)
    return statistics.mean(min(text.positions, most) if text.positions < longest else most for text in texts)


def reading_ms(surface: LatencySurface, tokens: int, excess: float = 1.0, cached: int = 0) -> float:
    """Return what reading a prompt of so many tokens takes, of which the first `cached` are not read.

    The time is linear between timed lengths and from 0 at 0, and proportional beyond. The tokens after the cached ones
    take the difference of both readings, as they attend to those, and at least their time alone. `excess` is mean over
    median of a reading where too few were timed; see `mean_over_median`. Some cells of `surface` must have run.
    """
    cells = sorted((cell.tokens, cell.median_ms) for cell in surface.measurements if cell.failure is None)
    lengths, times = np.array([(0, 0.0), *cells]).T
    longest = lengths[-1]
    whole, known, left = (
        float(np.interp(count, lengths, times) * max(count / longest, 1.0))
        for count in (tokens, cached, tokens - cached)
    )
    median_ms = max(whole - known, left)
    return median_ms * mean_over_median(surface, excess)
