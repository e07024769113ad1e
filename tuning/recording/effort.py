"""How much is recorded: as many texts as narrow intervals need, and trees as rich as there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...profiler.protocols import Parts
from ...profiler.records.acceptance import AcceptanceTrace
from ...runtime.batch.sequence import Request
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import reads_of
from ..parts import kept_or_made
from ..request import Level
from .continuations import SLOTS
from .recipe import LEVELS, Recipe, recipe_of
from .record import record_prompts

NARROW = 0.03  # half of a 90 % interval of tokens per round, relatively: more texts change no choice
CHAIN = 4  # drafted tokens, of the rounds whose interval is watched
TRIED_POSITIONS = 16  # of one text, whose trees say what those of all texts take
FED: Mapping[Level, float] = {  # nodes of a position that a drafter reads, where three of four drafts are right
    "standard": 50.0,
    "quick": 11.0,
    "chains": 3.0,
}
HOPELESS = 3.0  # times the time left: trees that take so long by what is fed are not tried
LEAST_AT_ONCE = 4  # texts of a group: of fewer no interval could be told
NORMAL_90 = 1.645

Text = tuple[Request, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingBudget:
    """The seconds for texts and drafters of one workload, `at_once` texts a group; the `fewest_texts` in any case."""

    limit_s: float
    fewest_texts: int
    at_once: int = SLOTS
    clock: Callable[[], float] = time.monotonic

    def groups(self, texts: int) -> list[int]:
        """Return how many texts are recorded behind each group."""
        return [min(upto, texts) for upto in range(self.at_once, texts + self.at_once, self.at_once)]

    def wants_more(self, traces: Sequence[AcceptanceTrace], spent_s: float, group_s: float) -> bool:
        """Return whether another group of texts, which takes as long as the last one, should be recorded."""
        if min(len(trace.prompts) for trace in traces) < self.fewest_texts:
            return True
        return spent_s + group_s <= self.limit_s and max(width_of(trace) for trace in traces) > NARROW

    def more_s(self, spent_s: float, group_s: float, groups: int, texts: int) -> float:
        """Return the seconds of so many more groups, each like the last: within the limit, or up to the fewest texts.

        `texts` are recorded so far.
        """
        needed = -(-(self.fewest_texts - texts) // self.at_once)
        within = max(int((self.limit_s - spent_s) / group_s), needed, 1) if group_s else groups
        return group_s * min(groups, within)

    def recipes(
        self, drafters: Mapping[str, CausalModel], texts: Sequence[Text], left_s: float, positions: int, parts: Parts
    ) -> dict[str, Recipe]:
        """Return each drafter's richest recipe whose trees at all positions fit into its share of the seconds."""
        found = {}
        for name, model in drafters.items():
            make = partial(self._richest, model, texts[0], left_s / len(drafters), positions)
            found[name] = recipe_of(kept_or_made(parts, f"level {name}", Chosen, make).level)
        return found

    def _richest(self, drafter: CausalModel, text: Text, left_s: float, positions: int) -> Chosen:
        read = partial(record_prompts, drafter, [text], Recipe(), [()])
        read()  # the first one loads and compiles kernels
        read_s = self._seconds(read)
        # where the target reads the text too, nothing is known of the drafter's own rows before it is tried
        row_s = 0.0 if reads_of(drafter) else read_s / (len(text[0].prompt) + len(text[1]))
        for level in LEVELS[:-1]:
            if FED[level] * row_s * positions > HOPELESS * left_s:
                continue
            tried = min(TRIED_POSITIONS, len(text[1]) - 1)
            record = partial(record_prompts, drafter, [text], recipe_of(level), [range(tried)])
            each_s = max(self._seconds(record) - read_s, 0.0) / tried
            if each_s * positions <= left_s:
                return Chosen(level=level)
        return Chosen(level=LEVELS[-1])

    def _seconds(self, run: Callable[[], object]) -> float:
        start = self.clock()
        run()
        return self.clock() - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The level that a drafter is recorded at."""

    level: Level


def width_of(trace: AcceptanceTrace) -> float:
    """Return half of the 90 % interval of a short chain's tokens per round, over texts, as a share of them."""
    means = np.array([_tokens_per_round(prompt.next_rank == 0) for prompt in trace.prompts])
    if len(means) < 2:
        return float("inf")
    return float(NORMAL_90 * means.std(ddof=1) / np.sqrt(len(means)) / means.mean())


def _tokens_per_round(is_right: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return 1 + the mean run of right tokens, up to CHAIN, from each position on."""
    padded = np.append(is_right, np.zeros(CHAIN, dtype=np.bool_))
    windows = np.lib.stride_tricks.sliding_window_view(padded, CHAIN)[: len(is_right)]
    return 1.0 + float(np.cumprod(windows, axis=1).sum(axis=1).mean())
