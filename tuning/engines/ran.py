"""Loads as the planner reads them, and how far apart two of them surely are."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import numpy as np

from ...engines.answers import RequestResult
from ...engines.bundle import Bundle, Trial
from ...engines.counters import Counts
from ...engines.server_engine import Start
from ...errors import MeasurementError
from ...planner.engines.served import PLAIN, Ran, Z
from .pace import Paces, Reader, paces_by

UNPACED = Paces()
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


def paces_of(trials: Sequence[Trial], drafters: Mapping[str, str] | None = None) -> Paces:
    """Return the pace of every load; `drafters` name the drafters of sources that are not called after theirs.

    A drafter's share of the time to read prompts is at most what one token that it drafts adds to a plain round, and
    all of it where no plain load is known. What drafts in few rounds is no model, and reads none.
    """
    if not any(trial.pace for trial in trials):
        return UNPACED
    first = min(trial.concurrency for trial in trials)
    own = [trial for trial in trials if trial.concurrency == first]
    plain = next((trial for trial in own if not trial.counts.drafts), None)
    readers = {trial.start.source: Reader() for trial in trials}
    for trial in sorted(own, key=lambda one: one.start.longest):
        if length := trial.start.at(first) if _drafts_always(trial) else 0:
            added = 1.0 if plain is None else (ran_of(trial).round_ms / ran_of(plain).round_ms - 1.0) / length
            name = (drafters or {}).get(trial.start.source, trial.start.source)
            readers[trial.start.source] = Reader(name=name, share=min(max(added, 0.0), 1.0))
    return paces_by(readers, trials)


def _drafts_always(trial: Trial) -> bool:
    tokens, answers = trial.load.tokens, len(trial.load.ended)
    return trial.counts.drafts > 0.5 * trial.counts.rounds(tokens, answers)


def ran_of(trial: Trial, *repeats: Trial, paces: Paces = UNPACED, basis: Sequence[Trial] = ()) -> Ran:
    """Return a load, or several of one length, as the planner reads them, at the mean of the `paces`.

    Its error is over the pace of the loads that it is compared with, the `basis`.

    Raises:
        MeasurementError: its answers have one token each, so there are no rounds, or it drafts though it is plain.
    """
    answers = paces.steadied((trial, *repeats))
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
        error=math.hypot(speed_error(answers), paces.error((trial, *repeats), basis)),
    )


def speed_error(answers: Sequence[RequestResult]) -> float:
    """Return the relative standard error of the tokens per second of answers, a ratio of two means."""
    if len(answers) < 2:
        return 0.1
    tokens = np.array([one.tokens for one in answers], dtype=float)
    ms = np.array([one.e2e_ms for one in answers])
    off = tokens - tokens.sum() / ms.sum() * ms
    return float(np.sqrt((off**2).sum() * len(answers) / (len(answers) - 1)) / tokens.sum())


def paced_gain(faster: Sequence[Trial], slower: Sequence[Trial], paces: Paces) -> tuple[float, float]:
    """Return 90 % of the speed-up of some loads over others at one pace; errors as of `paired_gain`."""
    fast, slow = (_joined(paces.steadied(one)) for one in (faster, slower))
    return paired_gain(fast, slow, paces.error(faster, slower))


def paired_gain(
    faster: Sequence[RequestResult], slower: Sequence[RequestResult], pace: float = 0.0
) -> tuple[float, float]:
    """Return 90 % of the speed-up of some answers over others to the same prompts, by a bootstrap over prompts.

    `pace` is the relative standard error of one side's pace over the other's.

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
    middle, apart = float(np.median(gains)), Z * pace
    below, above = (math.hypot(math.log(end / middle), apart) for end in (low, high))
    return middle * math.exp(-below), middle * math.exp(above)


def _joined(answers: Sequence[RequestResult]) -> list[RequestResult]:
    """Return the answers of several loads, each prompt once: times and tokens summed."""
    found: dict[int, RequestResult] = {}
    for one in answers:
        held = found.get(one.prompt)
        found[one.prompt] = one if held is None else _summed(held, one)
    return list(found.values())


def _summed(one: RequestResult, other: RequestResult) -> RequestResult:
    return RequestResult(
        prompt=one.prompt,
        ttft_ms=one.ttft_ms + other.ttft_ms,
        e2e_ms=one.e2e_ms + other.e2e_ms,
        tokens=one.tokens + other.tokens,
    )
