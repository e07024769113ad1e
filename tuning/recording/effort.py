"""How much is recorded: as many texts as narrow intervals need, and trees as rich as there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...profiler.protocols import Parts
from ...profiler.records.acceptance import AcceptanceTrace
from ...runtime.models.forward import CausalModel
from ...runtime.requests import Request
from ..parts import kept_or_made
from ..request import Level
from .recipe import LEVELS, Recipe, recipe_of
from .record import record_prompts

NARROW = 0.03  # half of a 90 % interval of tokens per round, relatively: more texts change no choice
CHAIN = 4  # drafted tokens, of the rounds whose interval is watched
TRIED_POSITIONS = 16  # of one text, whose trees say what those of all texts take
NORMAL_90 = 1.645

Texts = Sequence[tuple[Request, Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The seconds for texts and drafters of one workload, begun texts and the `fewest_texts` in any case."""

    limit_s: float
    fewest_texts: int

    def wants_more(self, traces: Sequence[AcceptanceTrace], spent_s: float, group_s: float) -> bool:
        """Return whether another group of texts, which takes as long as the last one, should be recorded."""
        if min(len(trace.prompts) for trace in traces) < self.fewest_texts:
            return True
        return spent_s + group_s / 2 <= self.limit_s and max(width_of(trace) for trace in traces) > NARROW

    def recipes(
        self, drafters: Mapping[str, CausalModel], texts: Texts, left_s: float, positions: int, parts: Parts
    ) -> dict[str, Recipe]:
        """Return each drafter's richest recipe whose trees at all positions fit into its share of the seconds."""
        found = {}
        for name, model in drafters.items():
            make = partial(_richest, model, texts[:1], left_s / len(drafters), positions)
            found[name] = recipe_of(kept_or_made(parts, f"level {name}", Chosen, make).level)
        return found


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


def _richest(drafter: CausalModel, texts: Texts, left_s: float, positions: int) -> Chosen:
    read_s = _seconds(partial(record_prompts, drafter, texts, Recipe(), [()]))
    for level in LEVELS[:-1]:
        tried = min(TRIED_POSITIONS, len(texts[0][1]) - 1)
        record = partial(record_prompts, drafter, texts, recipe_of(level), [range(tried)])
        each_s = max(_seconds(record) - read_s, 0.0) / tried
        if each_s * positions <= left_s:
            return Chosen(level=level)
    return Chosen(level=LEVELS[-1])


def _seconds(run: Callable[[], object]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start
