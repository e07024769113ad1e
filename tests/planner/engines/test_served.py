"""Lengths that did not run follow from those that did: exactly where costs are straight, within bounds where not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spectune.errors import PlanError
from spectune.planner.engines.served import FIRST, PLAIN, Ran, Served, served
from spectune.planner.engines.served_choice import (
    LatencyBounds,
    best_for_all,
    best_of,
    best_table,
    latency_bounds,
    next_way,
)

RIGHT = 0.7
TOKENS, TTFT_MS = 100.0, 20.0


def ran(length: int, round_ms: float, *, source: str = "small", right: float = RIGHT) -> Ran:
    acceptance = tuple(right**place for place in range(1, length + 1))
    return Ran(
        source=source if length else PLAIN,
        length=length,
        round_ms=round_ms,
        tokens_per_round=1.0 + sum(acceptance),
        acceptance=acceptance,
        ttft_ms=TTFT_MS,
        answer_tokens=TOKENS,
        error=0.01,
    )


def speed(concurrency: int, length: int, round_ms: float) -> float:
    tokens = sum(RIGHT**place for place in range(length + 1))
    return 1000.0 * concurrency * TOKENS / (TTFT_MS + (TOKENS - 1) * round_ms / tokens)


def by_length(ways: tuple[Served, ...]) -> dict[int, Served]:
    return {way.length: way for way in ways}


def test_lengths_between_are_exact_where_a_token_costs_as_much_as_the_next_and_drafting_at_all_a_little() -> None:
    found = by_length(served(4, [ran(0, 10.0), ran(8, 18.0)]))
    assert sorted(found) == list(range(9))
    for length, way in found.items():
        share = FIRST + (1.0 - FIRST) * length / 8 if length else 0.0
        assert way.tokens_per_s == pytest.approx(speed(4, length, 10.0 + 8.0 * share))
        assert way.is_measured == (length in (0, 8))
        assert way.least_tokens_per_s <= way.tokens_per_s <= way.most_tokens_per_s


def test_the_worst_case_costs_as_much_as_the_next_longer_length_and_the_best_as_the_next_shorter() -> None:
    found = by_length(served(1, [ran(0, 10.0), ran(4, 12.0), ran(8, 30.0)]))
    assert found[6].least_tokens_per_s == pytest.approx(speed(1, 6, 30.0))
    assert found[6].most_tokens_per_s == pytest.approx(speed(1, 6, 12.0))
    assert found[6].error > found[4].error


def test_rounds_that_begin_elsewhere_are_corrected_by_a_length_that_ran() -> None:
    more = replace(ran(2, 12.0), tokens_per_round=1.0 + 1.1 * (RIGHT + RIGHT**2))
    found = by_length(served(1, [ran(0, 10.0), more, ran(8, 18.0)]))
    tokens = found[2].tpot_ms ** -1 * 12.0
    assert tokens == pytest.approx(more.tokens_per_round)
    assert found[1].tpot_ms == pytest.approx((11.0 + FIRST) / (1.0 + 1.1 * RIGHT))


def test_a_guess_is_less_sure_the_further_apart_the_lengths_around_it_cost() -> None:
    near, far = by_length(served(1, [ran(0, 10.0), ran(8, 12.0)])), by_length(served(1, [ran(0, 10.0), ran(8, 90.0)]))
    assert far[3].error > 2.0 * near[3].error > 2.0 * near[8].error


REAL_ROUNDS_MS = {  # by concurrency and length; benchmarks/servers.py: llama.cpp b11434, Qwen2.5-Coder 1.5B with its
    1: {0: 34.5, 1: 117.0, 2: 179.9, 3: 206.6, 5: 313.4, 8: 476.6},  # 0.5B in 4 bits on 2 cores, HumanEval
    4: {0: 148.1, 1: 458.6, 2: 646.2, 3: 900.7, 5: 1192.7, 8: 1618.7},
    8: {0: 239.4, 1: 491.6, 2: 717.9, 3: 989.5, 5: 1475.5, 8: 2338.9},
}


def test_nine_of_ten_intervals_cover_the_rounds_of_a_real_server_of_which_two_lengths_ran() -> None:
    covered = []
    for concurrency, rounds_ms in REAL_ROUNDS_MS.items():
        found = by_length(served(concurrency, [ran(0, rounds_ms[0]), ran(8, rounds_ms[8])]))
        for length in (1, 2, 3, 5):
            low, high = found[length].interval
            covered.append(low < speed(concurrency, length, rounds_ms[length]) < high)
            assert found[length].error < 0.3
    assert sum(covered) >= 0.9 * len(covered)


def test_drafts_are_served_only_where_they_gain_more_than_their_standard_error() -> None:
    sure = {1: served(1, [ran(0, 10.0), ran(1, 16.6)])}  # 2.4 % faster a token, each load is known to 1 %
    assert best_of(sure[1], LatencyBounds()).source == "small"
    assert best_for_all(sure, LatencyBounds()) == ("small", 1)
    noisy = [replace(one, error=0.05) for one in (ran(0, 10.0), ran(8, 13.0))]
    assert best_for_all({1: served(1, noisy)}, LatencyBounds()) == ("small", 8)  # not a guess of less doubt
    doubtful = {1: served(1, [replace(one, error=0.03) for one in (ran(0, 10.0), ran(1, 16.6))])}
    assert best_of(doubtful[1], LatencyBounds()).source == PLAIN
    assert best_for_all(doubtful, LatencyBounds()) == (PLAIN, 0)


def test_plain_decoding_must_have_run_and_nothing_twice() -> None:
    with pytest.raises(PlanError, match="plain decoding and each length run once"):
        served(1, [ran(8, 18.0)])
    with pytest.raises(PlanError, match="run once"):
        served(1, [ran(0, 10.0), ran(0, 11.0)])
    with pytest.raises(PlanError, match="nothing else does"):
        replace(ran(0, 10.0), source="small")


def test_plain_decoding_is_taken_where_drafts_gain_nothing() -> None:
    assert best_of(served(1, [ran(0, 10.0), ran(8, 40.0)]), LatencyBounds()).source == PLAIN
    assert best_of(served(1, [ran(0, 10.0), ran(8, 12.0)]), LatencyBounds()).length == 8


def test_a_length_that_did_not_run_is_taken_only_where_it_wins_at_its_worst() -> None:
    ways = served(1, [ran(0, 10.0), ran(8, 30.0)])
    guessed = max(ways, key=lambda way: way.tokens_per_s)
    assert not guessed.is_measured and guessed.tokens_per_s > ways[0].tokens_per_s
    assert best_of(ways, LatencyBounds()).is_measured


def test_bounds_come_before_speed() -> None:
    ways = served(1, [ran(0, 10.0), ran(8, 12.0)])
    slow, fast = ways[0], ways[-1]
    assert best_of(ways, LatencyBounds(tpot_ms=0.5 * (slow.tpot_ms + fast.tpot_ms))).length == 8
    assert best_of(ways, LatencyBounds(tpot_ms=0.1)).length == 8  # none is within: the least time per token


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tpot<=20ms", LatencyBounds(tpot_ms=20.0)),
        ("TTFT <= 0.5s, tpot<30ms", LatencyBounds(tpot_ms=30.0, ttft_ms=500.0)),
        ("itl<=.03s", LatencyBounds(tpot_ms=30.0)),
    ],
)
def test_bounds_are_read(text: str, expected: LatencyBounds) -> None:
    assert latency_bounds(text) == expected


@pytest.mark.parametrize("text", ["", "e2e<=3ms", "tpot<=3", "tpot<=3ms,itl<=4ms"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="cannot read the latency bound"):
        latency_bounds(text)


def test_a_server_is_measured_by_means_alone() -> None:
    with pytest.raises(PlanError, match="mean latencies are bounded here"):
        latency_bounds("p90_tpot<=3ms")


def test_the_next_start_is_the_one_that_promises_most() -> None:
    ways = {1: served(1, [ran(0, 10.0), ran(8, 22.0)])}
    best = max(ways[1], key=lambda way: way.tokens_per_s)
    found = next_way(ways)
    assert found is not None and abs(found[1][1] - best.length) <= 2
    assert next_way({1: served(1, [ran(0, 10.0), ran(1, 10.5)])}) is None


def test_one_table_has_the_best_length_of_every_concurrency() -> None:
    ways = {
        1: served(1, [ran(0, 10.0), *(ran(length, 10.0 + 0.5 * length) for length in range(1, 9))]),
        8: served(8, [ran(0, 10.0), *(ran(length, 10.0 + 4.0 * length) for length in range(1, 9))]),
    }
    source, lengths = best_table(ways, LatencyBounds(), "small")
    assert (source, lengths) == ("small", {at: best_of(ways[at], LatencyBounds()).length for at in ways})
    assert lengths[1] > lengths[8]
    name, length = best_for_all(ways, LatencyBounds())
    assert name == "small" and lengths[8] <= length <= lengths[1]


def test_a_table_may_have_its_longest_length_first() -> None:
    dear = [ran(0, 10.0), *(ran(length, 10.0 + 2.0 * length) for length in range(1, 9))]
    cheap = [ran(0, 10.0), *(ran(length, 10.0 + 0.2 * length) for length in range(1, 9))]
    ways = {1: served(1, dear), 4: served(4, cheap), 8: served(8, dear)}
    rising = best_table(ways, LatencyBounds(), "small")[1]
    falling = best_table(ways, LatencyBounds(), "small", longest_first=True)[1]
    assert rising[1] < rising[4]
    assert set(falling.values()) == {rising[1]}
    few = {at: served(at, [own[0], own[-1]]) for at, own in ((1, dear), (4, cheap), (8, dear))}
    wanted, allowed = next_way(few, {"small"}), next_way(few, {"small"}, {"small"})
    assert wanted is not None and wanted[1][1] < max(wanted[1].values())
    assert allowed is not None and allowed[1][1] == max(allowed[1].values())


def test_a_table_of_nearly_equal_speeds_is_one_length() -> None:
    flat = [ran(0, 10.0), ran(1, 10.0 * (1 + RIGHT) / 2.0), ran(2, 10.0 * (1 + RIGHT + RIGHT**2) / 2.001)]
    other = [ran(0, 10.0), ran(1, 10.0 * (1 + RIGHT) / 2.001), ran(2, 10.0 * (1 + RIGHT + RIGHT**2) / 2.0)]
    _, lengths = best_table({1: served(1, flat), 4: served(4, other)}, LatencyBounds(), "small")
    assert len(set(lengths.values())) == 1
    assert math.isfinite(served(1, flat)[0].interval[0])
