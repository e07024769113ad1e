"""Loads as the planner reads them, and how far apart two of them surely are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from functools import reduce
from statistics import fmean

import numpy as np

from ...engines.answers import RequestResult
from ...engines.base import Start
from ...engines.bundle import Bundle, Trial
from ...engines.counters import Counts
from ...errors import MeasurementError
from ...planner.engines.served import PLAIN, Ran, Z

RESAMPLES, SEED = 1000, 0  # of the bootstrap over prompts
LEVEL = 0.9


def by_way(bundle: Bundle, concurrency: int, *, tables: Collection[Start]) -> dict[tuple[str, int], list[Trial]]:
    """Return the loads of a concurrency by source and length, starts of one length before some tables.

    A table's row without drafts is no plain decoding: the drafter is loaded beside.
    """
    own = [trial for trial in bundle.trials if trial.concurrency == concurrency]
    counted = [trial for trial in own if not trial.start.is_table]
    counted += [trial for trial in own if trial.start in tables and trial.start.at(concurrency)]
    found: dict[tuple[str, int], list[Trial]] = {}
    for trial in counted:
        length = trial.start.at(concurrency)
        found.setdefault((trial.start.source if length else PLAIN, length), []).append(trial)
    return found


def pace_error(bundle: Bundle, text_sources: Set[str]) -> float:
    """Return the relative standard deviation of a start's pace, by its prefills; 0 where none can be compared.

    At the lowest concurrency nothing but the prefill makes a TTFT. Starts that load the same models read the same
    prompts; plain decoding and `text_sources` load the target alone.
    """
    lowest = min(trial.concurrency for trial in bundle.trials)
    by_models: dict[str, list[dict[int, float]]] = {}
    for trial in bundle.trials:
        if trial.concurrency == lowest:
            name = "" if trial.start.source in {PLAIN, *text_sources} else trial.start.source
            by_models.setdefault(name, []).append({one.prompt: one.ttft_ms for one in trial.load.ended})
    squares, degrees = 0.0, 0
    for own in by_models.values():
        shared = set[int].intersection(*map(set, own))
        if len(own) < 2 or not shared:
            continue
        paces = [fmean(math.log(one[prompt]) for prompt in shared) for one in own]
        squares += sum((pace - fmean(paces)) ** 2 for pace in paces)
        degrees += len(paces) - 1
    return math.sqrt(squares / degrees) if degrees else 0.0


def ran_of(trial: Trial, *repeats: Trial, pace: float = 0.0) -> Ran:
    """Return a load, or several of one length, as the planner reads them; `pace` is the error of a start's pace.

    Raises:
        MeasurementError: its answers have one token each, so there are no rounds, or it drafts though it is plain.
    """
    answers = [one for own in (trial, *repeats) for one in own.load.ended]
    counts = reduce(Counts.plus, (own.counts for own in repeats), trial.counts)
    length = trial.start.at(trial.concurrency)
    if trial.start.source == PLAIN and counts.drafts > 0:
        raise MeasurementError(
            f"plain decoding drafted in {counts.drafts:g} rounds: the command drafts by its own configuration file; "
            "move these options into the command"
        )
    tokens = sum(one.tokens for one in answers)
    rounds = counts.rounds(tokens, len(answers)) if length else float(tokens - len(answers))
    if rounds <= 0:
        raise MeasurementError("all answers have one token; let requests ask for longer ones")
    return Ran(
        source=trial.start.source if length else PLAIN,
        length=length,
        round_ms=sum(one.e2e_ms - one.ttft_ms for one in answers) / rounds,
        tokens_per_round=(tokens - len(answers)) / rounds,
        acceptance=counts.acceptance(rounds),
        ttft_ms=sum(one.ttft_ms for one in answers) / len(answers),
        answer_tokens=tokens / len(answers),
        error=math.hypot(speed_error(answers), pace / math.sqrt(1 + len(repeats))),
    )


def speed_error(answers: Sequence[RequestResult]) -> float:
    """Return the relative standard error of the tokens per second of answers, a ratio of two means."""
    if len(answers) < 2:
        return 0.1
    tokens = np.array([one.tokens for one in answers], dtype=float)
    ms = np.array([one.e2e_ms for one in answers])
    off = tokens - tokens.sum() / ms.sum() * ms
    return float(np.sqrt((off**2).sum() * len(answers) / (len(answers) - 1)) / tokens.sum())


def paired_gain(
    faster: Sequence[RequestResult], slower: Sequence[RequestResult], pace: float = 0.0
) -> tuple[float, float]:
    """Return 90 % of the speed-up of some answers over others to the same prompts, by a bootstrap over prompts.

    Each side has an error of its own in its start's `pace`, relative.

    Raises:
        MeasurementError: they answer no prompt in common.
    """
    own = {one.prompt: one for one in slower}
    pairs = [(one, own[one.prompt]) for one in faster if one.prompt in own]
    if not pairs:
        raise MeasurementError("the two loads answer no prompt in common; measure both with the same prompts")
    numbers = np.array([[fast.tokens, fast.e2e_ms, slow.tokens, slow.e2e_ms] for fast, slow in pairs], dtype=float)
    drawn = np.random.default_rng(SEED).integers(0, len(pairs), size=(RESAMPLES, len(pairs)))
    fast_tokens, fast_ms, slow_tokens, slow_ms = numbers[drawn].sum(axis=1).T
    gains = fast_tokens / fast_ms * slow_ms / slow_tokens
    low, high = np.quantile(gains, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    middle, apart = float(np.median(gains)), Z * math.sqrt(2.0) * pace
    below, above = (math.hypot(math.log(end / middle), apart) for end in (low, high))
    return middle * math.exp(-below), middle * math.exp(above)
