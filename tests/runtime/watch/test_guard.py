"""The guard: plain decoding is asked now and then, takes over where it is faster, and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.stats import binom

from spectune.runtime.watch.contest import LEAST_SAVED
from spectune.runtime.watch.guard import (
    DRAFTED_BURST,
    MOST_CHANGES,
    PLAIN_BURST,
    SIDE,
    UNSETTLED,
    Guard,
    Switch,
    Way,
)

STREAMS, ROUNDS, RATE = 300, 3000, 0.05
TEXT = 30  # rounds
SHARE = 0.15


def guard_of(rate: float, share: float, *, is_doubtful: bool = False) -> Guard:
    """Return the guard of a planned way, 0, and plain decoding, 1."""
    ways = [Way(burst=DRAFTED_BURST, share=share), Way(burst=PLAIN_BURST, share=share)]
    return Guard(rate, ways, is_doubtful=is_doubtful)


@dataclass
class Machine:
    """Runs rounds the way a guard wants them: planned ones yield 1 to 4 tokens, plain ones 1; stalls hit both."""

    guard: Guard
    seed: int = 0
    planned_ms: Callable[[int], float] = lambda round_number: 2.5  # as fast as plain decoding
    batch: Callable[[int], int] = lambda round_number: 1
    switches: list[tuple[int, Switch]] = field(default_factory=list)
    plain_rounds: int = 0
    lost_ms: float = 0.0  # to plain decoding, without stalls
    ms: float = 0.0

    def run(self, rounds: int) -> None:
        generator = np.random.default_rng(self.seed)
        drawn = generator.integers(1, 5, size=rounds)
        noise = np.exp(0.1 * generator.standard_normal(rounds)) * np.where(generator.random(rounds) < 0.01, 20.0, 1.0)
        for place in range(rounds):
            is_planned = not self.guard.wanted
            self.plain_rounds += not is_planned
            usual = self.planned_ms(place)
            self.ms += usual if is_planned else 1.0
            self.lost_ms += 0.0 if is_planned else 1.0 - usual / 2.5
            switch = self.guard.note(
                way=int(not is_planned),
                batch=self.batch(place),
                tokens=int(drawn[place]) if is_planned else 1,
                round_ms=float(noise[place]) * (self.planned_ms(place) if is_planned else 1.0),
                texts=place // TEXT,
            )
            if switch is not None:
                self.switches.append((place, switch))


def test_a_planned_way_that_is_as_fast_is_left_as_rarely_as_stated() -> None:
    switched = 0
    for seed in range(STREAMS):
        machine = Machine(guard_of(RATE, SHARE), seed)
        machine.run(ROUNDS)
        switched += bool(machine.switches)
    assert switched <= int(binom.ppf(0.999, STREAMS, RATE))


def test_a_planned_way_that_is_a_third_slower_is_left() -> None:
    left = 0
    for seed in range(20):
        machine = Machine(guard_of(0.01, 0.02), seed, planned_ms=lambda place: 3.75)
        machine.run(4000)
        left += bool(machine.switches)
    assert left >= 19


def test_what_is_told_of_a_switch_is_what_was_seen() -> None:
    machine = Machine(guard_of(0.01, 0.02), planned_ms=lambda place: 3.75)
    machine.run(4000)
    _, switch = machine.switches[0]
    assert (switch.left, switch.taken) == (0, 1) and switch.lost <= switch.comparisons
    assert switch.ratio == pytest.approx(1.5, rel=0.2)


def test_a_passing_disturbance_does_not_pin_the_cell_to_plain_decoding() -> None:
    machine = Machine(guard_of(0.01, 0.05), planned_ms=lambda place: 10.0 if place < 3000 else 1.0)
    machine.run(15000)
    assert [switch.taken for _, switch in machine.switches] == [1, 0]
    assert machine.switches[0][0] < 3000 < machine.switches[1][0]


def test_a_planned_way_that_wins_loses_its_share_of_the_time_and_no_more() -> None:
    machine = Machine(guard_of(0.01, 0.02), planned_ms=lambda place: 1.0)
    machine.run(50_000)
    assert 0.01 < machine.lost_ms / machine.ms <= 0.02


def test_a_way_that_is_as_fast_is_compared_in_every_text_and_one_that_is_slower_seldom() -> None:
    alike, slow = Machine(guard_of(0.01, 0.01)), Machine(guard_of(0.01, 0.01), planned_ms=lambda place: 1.0)
    alike.run(20_000)
    slow.run(20_000)
    assert alike.plain_rounds > 3 * slow.plain_rounds and alike.lost_ms <= 0.01 * alike.ms


def test_a_guess_is_compared_at_once_and_a_measured_plan_later() -> None:
    guess, measured = Machine(guard_of(0.01, 0.02, is_doubtful=True)), Machine(guard_of(0.01, 0.02))
    guess.run(40)
    measured.run(40)
    assert (guess.plain_rounds, measured.plain_rounds) == (PLAIN_BURST, 0)


def test_a_burst_follows_another_in_another_text_or_long_after_it() -> None:
    def rounds_between(text: int) -> int:
        guard, began = guard_of(0.01, 0.1, is_doubtful=True), list[int]()
        for place in range(400):
            if guard.wanted and (not began or place > began[-1] + PLAIN_BURST):
                began.append(place)
            guard.note(way=guard.wanted, batch=1, tokens=1, round_ms=1.0, texts=place // text)
        return began[1] - began[0]

    comparison = 2 * SIDE + PLAIN_BURST
    assert rounds_between(text=20) == comparison  # one after the other
    assert rounds_between(text=10_000) == pytest.approx((PLAIN_BURST + UNSETTLED) / 0.1, abs=UNSETTLED + 1)


def test_batches_of_different_size_are_not_compared() -> None:
    machine = Machine(guard_of(0.01, 0.5), planned_ms=lambda place: 9.0, batch=lambda place: 1 + place // 6)
    machine.run(4000)
    assert not machine.switches


@pytest.mark.parametrize("period", [16, 20, 30])
def test_a_planned_way_that_loses_is_left_where_batches_do_not_stay_for_long(period: int) -> None:
    machine = Machine(guard_of(0.01, 0.05), planned_ms=lambda place: 5.0, batch=lambda place: 8 - place // period % 2)
    machine.run(30_000)
    assert machine.switches[0][1].taken == 1


def test_a_planned_way_that_is_as_fast_is_left_as_rarely_where_batches_do_not_stay_for_long() -> None:
    switched = 0
    for seed in range(STREAMS):
        machine = Machine(guard_of(RATE, SHARE), seed, batch=lambda place: 8 - place // 20 % 2)
        machine.run(ROUNDS)
        switched += bool(machine.switches)
    assert switched <= int(binom.ppf(0.999, STREAMS, RATE))


@pytest.mark.parametrize("period", [26, 30, 34, 44, 56])
def test_comparisons_that_are_broken_off_count_among_what_plain_decoding_gets(period: int) -> None:
    machine = Machine(guard_of(0.01, 0.02), planned_ms=lambda place: 1.0, batch=lambda place: place // period % 2 + 1)
    machine.run(20_000)
    assert 0 < machine.lost_ms <= 0.02 * machine.ms


def test_a_burst_that_comes_to_no_end_is_broken_off_and_counts() -> None:
    guard = guard_of(0.01, 0.02, is_doubtful=True)
    before = rounds_until_probed(guard)
    plain = 0
    for _ in range(2000):  # every round follows one of another cell, and is not measured
        plain += guard.wanted
        guard.note_change()
    assert 0 < plain <= MOST_CHANGES + 1
    assert plain / (before + plain + rounds_until_probed(guard)) <= 0.02


def test_a_burst_while_prompts_are_read_ends_and_counts() -> None:
    guard = guard_of(0.01, 0.02, is_doubtful=True)
    before = rounds_until_probed(guard)
    unjudged = 0
    for _ in range(64):  # pieces of a long prompt: every round may hold one
        unjudged += guard.wanted
        guard.note_unjudged(guard.wanted)
    assert 0 < unjudged <= PLAIN_BURST
    assert unjudged / (before + unjudged + rounds_until_probed(guard)) <= 0.02


def test_rounds_of_the_current_way_while_prompts_are_read_cost_nothing() -> None:
    ways = [guard_of(0.01, 0.02), guard_of(0.01, 0.02)]
    for _ in range(5000):
        assert ways[0].wanted == ways[1].wanted
        for guard in ways:
            guard.note(way=guard.wanted, batch=8, tokens=8, round_ms=1.0)
        if not ways[1].wanted:
            ways[1].note_unjudged(0)


def rounds_until_probed(guard: Guard) -> int:
    """Run planned rounds of 8 sequences until plain decoding is asked for; return how many."""
    rounds = 0
    while not guard.wanted:
        guard.note(way=0, batch=8, tokens=8, round_ms=1.0)
        rounds += 1
    return rounds


def test_rounds_without_times_say_nothing() -> None:
    guard = guard_of(0.01, 0.5)
    for _ in range(2000):
        assert guard.note(way=guard.wanted, batch=1, tokens=1, round_ms=0.0) is None


def is_ever_switched_by_coins(seed: int, rounds: int = 8000) -> bool:
    """Let a coin say, burst by burst, whether plain decoding saves half of the time or loses all of it.

    It saves as much as is not yet worth a change, on average.
    """
    guard, coins = guard_of(RATE, 0.5), np.random.default_rng(seed)
    was_plain, plain_ms, chance = False, 1.0, 1.0 / (1.5 - LEAST_SAVED)
    for place in range(rounds):
        is_planned = not guard.wanted
        if not is_planned and not was_plain:
            plain_ms = 0.5 if coins.random() < chance else 2.0
        was_plain = not is_planned
        ms = 1.0 if is_planned else plain_ms
        if guard.note(way=int(not is_planned), batch=1, tokens=1, round_ms=ms, texts=place // TEXT):
            return True
    return False


def test_a_plan_beside_which_nothing_is_saved_on_average_is_left_as_rarely_as_stated() -> None:
    switched = sum(is_ever_switched_by_coins(seed) for seed in range(STREAMS))
    assert switched <= int(binom.ppf(0.999, STREAMS, RATE))
