"""Loads as the planner reads them: the pace of a start, and how far apart two loads surely are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.bundle import Trial
from spectune.engines.counters import Counts
from spectune.engines.sentinel import Reading
from spectune.engines.server_engine import Start
from spectune.errors import MeasurementError
from spectune.planner.engines.served import PLAIN
from spectune.tuning.engines.pace import Paces, Reader, paces_by
from spectune.tuning.engines.ran import paces_of, paired_gain, ran_of

DRAFTED = Counts(drafts=4.0, drafted=12.0, accepted=8.0)


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


def read(own: Trial, *around_ms: float) -> Trial:
    """Return a load with readings around it."""
    return replace(own, pace=tuple(Reading(words=96, long_ms=(ms + 20.0,), short_ms=(20.0,)) for ms in around_ms))


def gain_of(paces: Paces, slow: Trial, fast: Trial) -> float:
    return ran_of(slow, paces=paces).round_ms / ran_of(fast, paces=paces).round_ms


def test_a_start_at_a_slower_pace_is_scaled_to_the_common_one() -> None:
    plain = read(trial(PLAIN, [100.0, 300.0]), 200.0, 200.0)
    slower = [read(trial("n-grams", [125.0, 375.0], length=length), 250.0, 250.0) for length in (1, 2, 3)]
    paces = paces_by({PLAIN: Reader(), "n-grams": Reader()}, [plain, *slower])
    assert paces.spread[1] / paces.spread[0] == pytest.approx(1.25, rel=0.01)
    assert gain_of(paces, plain, slower[0]) == pytest.approx(1.25 * gain_of(Paces(), plain, slower[0]), rel=0.01)
    assert paces.error([slower[0]], [plain]) < 0.01
    assert paces.error([slower[0]]) > paces.error([slower[0]], [slower[1]])  # the common pace itself is not known


def test_readings_that_differ_by_their_noise_correct_little() -> None:
    loads = [read(trial(PLAIN, [100.0]), 180.0, 220.0), read(trial("n-grams", [100.0]), 230.0, 190.0)]
    paces = paces_by({PLAIN: Reader(), "n-grams": Reader()}, loads)
    assert paces.spread[1] / paces.spread[0] < math.sqrt(230.0 * 190.0 / (180.0 * 220.0))
    assert paces.error([loads[1]], [loads[0]]) > 0.05


def test_what_a_drafter_adds_to_a_reading_is_no_pace() -> None:
    plain = [read(trial(source, [100.0]), 200.0, 200.0) for source in (PLAIN, "n-grams")]
    drafted = [read(trial("small", [100.0], length=length), 220.0, 220.0) for length in (1, 2, 3)]
    readers = {PLAIN: Reader(), "n-grams": Reader(), "small": Reader(name="small", share=0.2)}
    own, alike = paces_by(readers, [*plain, *drafted]), paces_by(dict.fromkeys(readers, Reader()), [*plain, *drafted])
    assert own.spread[1] / own.spread[0] < 1.03 < 1.08 < alike.spread[1] / alike.spread[0]
    assert own.error([drafted[0]], [plain[0]]) > own.error([drafted[0]], [drafted[1]])


def test_who_drafts_always_may_read_prompts_and_who_drafts_seldom_does_not() -> None:
    plain, seldom = trial(PLAIN, [10.0, 10.0]), trial("n-grams", [10.0, 10.0])
    always = trial("small", [10.0, 10.0])
    always = replace(always, counts=replace(always.counts, drafts=10.0))  # of 10 rounds, where n-grams draft in 4
    readings = {PLAIN: 200.0, "n-grams": 200.0, "small": 260.0}
    loads = [read(one, readings[one.start.source], readings[one.start.source]) for one in (plain, seldom, always)]
    paces = paces_of(loads)
    assert paces.error([loads[2]], [loads[0]]) > 3.0 * paces.error([loads[1]], [loads[0]])


@pytest.mark.parametrize("spoilt", [(), (200.0,)])
def test_loads_without_readings_are_as_they_are(spoilt: Sequence[float]) -> None:
    loads = [read(trial(PLAIN, [100.0]), *spoilt), read(trial("n-grams", [100.0]), *spoilt)]
    paces = paces_of(loads)
    assert paces == Paces() and paces.spread == (1.0, 1.0)
    assert paces.steadied(loads[:1]) == list(loads[0].load.ended)
    assert ran_of(loads[0], paces=paces) == ran_of(loads[0])


def test_the_error_of_a_pace_is_part_of_a_load_s() -> None:
    one = read(trial(PLAIN, [100.0, 100.0]), 200.0, 200.0)
    others = [read(trial("n-grams", [100.0, 100.0], length=length), 240.0, 200.0) for length in (1, 2)]
    paces = paces_of([one, *others])
    assert ran_of(one).error == pytest.approx(0.0)
    assert ran_of(one, paces=paces).error == pytest.approx(paces.error([one])) != 0.0
    assert ran_of(one, paces=paces, basis=[one]).error == pytest.approx(0.0)


@pytest.mark.parametrize(("pace", "factor"), [(0.0, 1.0), (0.05, math.exp(1.645 * 0.05))])
def test_a_gain_is_as_uncertain_as_one_pace_over_the_other(pace: float, factor: float) -> None:
    slow, fast = answers([10.0] * 4, 20.0), answers([10.0] * 4, 10.0)
    assert paired_gain(fast, slow, pace) == pytest.approx((1.9 / factor, 1.9 * factor))


def test_plain_decoding_that_drafts_is_refused_and_a_table_s_row_without_drafts_is_not() -> None:
    drafting = trial("small", [10.0, 10.0])
    with pytest.raises(MeasurementError, match="4 rounds: the command drafts by its own configuration file"):
        ran_of(replace(drafting, start=Start.of(PLAIN, {1: 0})))
    row = replace(drafting, start=Start.of("small", {1: 0, 4: 3}))  # at the end of a load fewer are in flight
    assert ran_of(row).length == 0
