"""What reading prompts costs: every request pays for it once, by the target and by each model that drafts for it.

While a prompt is read no sequence of the batch decodes, so each decoded token pays

    read_ms / decoded tokens of an answer        milliseconds of the whole device, whatever the batch

beside its share of rounds; the first token comes with the prompt. Answers that end early decode fewer tokens than they
may, and read as much. The target's reading is the same however drafts are made; a drafter's is paid only where it
drafts, so it decides between drafters and none where prompts are long and answers short. What a prompt begins with may
have been read before (prefix caching), by both.
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
    """Milliseconds of reading one prompt of a cell, and the answers they are paid by.

    Attributes:
        prompt_tokens: of a prompt.
        cached_tokens: of these, not read anew.
        new_tokens: most of an answer; None where that is not told, and then nothing is chosen by it.
        decoded_tokens: of an answer on average; likewise.
        target_ms: by the target; None where that was not timed.
        drafts_ms: by drafter name; none of one that was not timed.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int | None = None
    decoded_tokens: float | None = None
    target_ms: float | None = None
    drafts_ms: Mapping[str, float] = field(default_factory=dict)

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

    Half an answer on average stands behind the prompt of what is decoded at the cell's context.

    Args:
        inputs: whose readings were timed.
        cell: of the plan.
        new_tokens: of an answer, None where that is open: then prompts are as long as the context.
        cached_share: of a prompt, not read anew; its last token always is.
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
    """Return how many tokens of an answer of at most `new_tokens` are decoded on average.

    A recorded text that is shorter than the longest had ended; the longest would have gone on.
    """
    most, longest = new_tokens - 1, max(text.positions for text in texts)
    return statistics.mean(min(text.positions, most) if text.positions < longest else most for text in texts)


def reading_ms(surface: LatencySurface, tokens: int, excess: float = 1.0, cached: int = 0) -> float:
    """Return what reading a prompt takes: straight between timed lengths and from nothing at 0, in proportion beyond.

    What is left behind cached tokens takes what it adds to reading these, which counts that it looks at them, and at
    least what it would take by itself.

    Args:
        surface: of a model that reads, some of whose cells ran.
        tokens: of the prompt.
        excess: how many times as long as a median reading a mean one is on this machine, where too few were timed to
            tell; see `mean_over_median`.
        cached: tokens of the prompt's beginning that are not read, fewer than it has.
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
