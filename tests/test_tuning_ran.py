"""Loads as the planner reads them: the pace of a start, and how far apart two loads surely are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.base import Start
from spectune.engines.bundle import Bundle, Setup, Trial
from spectune.engines.counters import Counts
from spectune.errors import MeasurementError
from spectune.planner.engines.served import PLAIN
from spectune.tuning.engines.ran import pace_error, paired_gain, ran_of

TEXTS = {"n-grams"}
DRAFTED = Counts(drafts=4.0, drafted=12.0, accepted=8.0)
SETUP = Setup(
    engine="llama.cpp",
    command=(),
    drafters=(),
    prompts=(2, ""),
    sampling="",
    concurrencies=(1, 4),
    requests=2,
    longest=8,
)


def answers(ttft_ms: Sequence[float], token_ms: float = 10.0) -> tuple[RequestResult, ...]:
    return tuple(
        RequestResult(prompt=number, ttft_ms=first, e2e_ms=first + 9 * token_ms, tokens=10)
        for number, first in enumerate(ttft_ms)
    )


def trial(source: str, ttft_ms: Sequence[float], *, concurrency: int = 1, length: int = 3) -> Trial:
    return Trial(
        start=Start.of(source, {concurrency: 0 if source == PLAIN else length}),
        concurrency=concurrency,
        load=LoadResult(concurrency=concurrency, answers=answers(ttft_ms), wall_s=1.0, client_share=0.1),
        counts=replace(Counts() if source == PLAIN else DRAFTED, generated=10.0 * len(ttft_ms)),
    )


def bundle(*trials: Trial) -> Bundle:
    return Bundle(spectune="", setup=SETUP, trials=trials)


def test_starts_that_load_the_same_models_tell_the_pace_by_their_prefills() -> None:
    plain, slower = trial(PLAIN, [100.0, 300.0]), trial("n-grams", [120.0, 360.0])
    assert pace_error(bundle(plain, slower), TEXTS) == pytest.approx(math.log(1.2) / math.sqrt(2.0))
    drafters = trial("small", [200.0, 500.0]), trial("small", [200.0, 500.0], length=1)
    both = pace_error(bundle(plain, slower, *drafters), TEXTS)
    assert both == pytest.approx(math.log(1.2) / 2.0)  # one of two comparisons differs


@pytest.mark.parametrize(
    "others",
    [
        (),
        (trial("small", [150.0, 400.0]),),  # reads each prompt twice
        (trial("n-grams", [150.0, 400.0], concurrency=4), trial("n-grams", [100.0, 300.0])),
    ],
)
def test_other_models_and_higher_concurrencies_tell_no_pace(others: Sequence[Trial]) -> None:
    assert pace_error(bundle(trial(PLAIN, [100.0, 300.0]), *others), TEXTS) == 0.0


def test_the_error_of_a_pace_is_part_of_a_loads_and_shrinks_with_its_starts() -> None:
    one = trial(PLAIN, [100.0, 100.0])
    assert ran_of(one).error == pytest.approx(0.0)
    assert ran_of(one, pace=0.1).error == pytest.approx(0.1)
    assert ran_of(one, one, one, one, pace=0.1).error == pytest.approx(0.05)


@pytest.mark.parametrize(("pace", "factor"), [(0.0, 1.0), (0.05, math.exp(1.645 * math.sqrt(2.0) * 0.05))])
def test_a_gain_is_as_uncertain_as_the_pace_of_both_starts(pace: float, factor: float) -> None:
    slow, fast = answers([10.0] * 4, 20.0), answers([10.0] * 4, 10.0)
    assert paired_gain(fast, slow, pace) == pytest.approx((1.9 / factor, 1.9 * factor))


def test_plain_decoding_that_drafts_is_refused_and_a_table_s_row_without_drafts_is_not() -> None:
    drafting = trial("small", [10.0, 10.0])
    with pytest.raises(MeasurementError, match="4 rounds: the command drafts by its own configuration file"):
        ran_of(replace(drafting, start=Start.of(PLAIN, {1: 0})))
    row = replace(drafting, start=Start.of("small", {1: 0, 4: 3}))  # at the end of a load fewer are in flight
    assert ran_of(row).length == 0
