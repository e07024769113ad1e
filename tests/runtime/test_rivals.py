"""Rivals of a plan's ways: which are tried while it runs, how often, and what becomes of one that wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from spectune.errors import RequestError
from spectune.planner.plans.observation import Observation
from spectune.planner.plans.plan import Alternative, Plan
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.profiler.records.wire import from_json
from spectune.report.site.kept import kept_cells
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.fallbacks import alternative_setup, with_rivals
from spectune.runtime.plan_choice import Choice
from spectune.runtime.watch.guard import DRAFTED_BURST, PLAIN_BURST, SIDE, UNSETTLED, Guard, Switch, Way
from spectune.runtime.watch.ledger import Subject
from spectune.runtime.watch.observations import ObservationWriter
from spectune.runtime.watch.options import WatchOptions
from spectune.runtime.watch.watch import Watch

from ..support.plans import plain_cell, plan_of
from ..support.synthetic import DEVICE
from ..support.watched_rounds import choice_of, drafting_cell, drafting_plan, round_of

COPY = LookupPolicy(length=2, max_ngram=2)
HYBRID = HybridPolicy(text=SuffixPolicy(length=4, min_match=2), model=ChainPolicy(length=3))
LONGEST = 2048
QUICK = WatchOptions(probe_share=0.2, rival_share=0.2, block_rounds=4, block_texts=1, longest_block=8)
PLANNED, PLAIN, RIVAL = 0, 1, 2

Speed = Callable[[int, int], float]  # (way, round) -> tokens/ms


def contest(rate: float = 0.01, share: float = 0.02) -> Guard:
    """Return the guard of a planned way, plain decoding and one rival."""
    bursts = (DRAFTED_BURST, PLAIN_BURST, DRAFTED_BURST)
    return Guard(rate, [Way(burst=burst, share=share) for burst in bursts])


def played(guard: Guard, rounds: int, speed: Speed, seed: int = 0) -> tuple[Counter[int], list[tuple[int, Switch]]]:
    """Run rounds as a guard wants them; return how many of each way ran, and the switches with their rounds."""
    generator = np.random.default_rng(seed)
    drawn, noise = generator.integers(1, 5, size=rounds), np.exp(0.1 * generator.standard_normal(rounds))
    ran: Counter[int] = Counter()
    switches = []
    for place in range(rounds):
        way = guard.wanted
        ran[way] += 1
        tokens = 1 if way == PLAIN else int(drawn[place])
        usual = (1.0 if way == PLAIN else 2.5) / speed(way, place)  # ms, for 2.5 tokens in the middle
        ms = usual * float(noise[place])
        switch = guard.note(way=way, batch=1, tokens=tokens, round_ms=ms, texts=place // 30)
        if switch is not None:
            switches.append((place, switch))
    return ran, switches


def test_a_rival_that_is_faster_takes_over_and_one_that_is_not_does_not() -> None:
    _, switches = played(contest(), 20_000, lambda way, place: 1.5 if way == RIVAL else 1.0)
    assert [(switch.left, switch.taken) for _, switch in switches] == [(PLANNED, RIVAL)]
    assert switches[0][1].ratio == pytest.approx(1.5, rel=0.15)
    _, switches = played(contest(), 20_000, lambda way, place: 1.0 if way == PLANNED else 0.8)
    assert not switches


def test_the_planned_way_comes_back_where_it_is_the_fastest_again() -> None:
    def speed(way: int, place: int) -> float:
        return {PLANNED: 0.5 if place < 12_000 else 2.0, PLAIN: 1.0, RIVAL: 1.5}[way]

    _, switches = played(contest(), 40_000, speed)
    assert switches[-1][1].taken == PLANNED and switches[-1][0] > 12_000
    assert RIVAL in {switch.taken for place, switch in switches if place < 12_000}


def test_with_several_ways_as_fast_one_is_left_as_rarely_as_stated() -> None:
    rate, streams = 0.05, 200
    switched = sum(bool(played(contest(rate, 0.15), 2000, lambda way, place: 1.0, seed)[1]) for seed in range(streams))
    assert switched <= int(binom.ppf(0.999, streams, rate))


def test_every_way_loses_its_share_of_the_time_and_no_more() -> None:
    bursts = ((DRAFTED_BURST, 0.02), (PLAIN_BURST, 0.02), (DRAFTED_BURST, 0.01))
    guard = Guard(0.01, [Way(burst=burst, share=share) for burst, share in bursts])
    rounds = 60_000
    ran, switches = played(guard, rounds, lambda way, place: 2.0 if way == PLANNED else 1.0)
    assert not switches
    own_ms = 2.5 / 2.0  # of a round; the rival's take twice as long, and plain ones 1 ms for a token that takes 0.5
    lost = {PLAIN: 0.5 * ran[PLAIN], RIVAL: own_ms * ran[RIVAL]}
    assert 0.008 < lost[PLAIN] / (own_ms * rounds) <= 0.02 and 0.004 < lost[RIVAL] / (own_ms * rounds) <= 0.01


def of_mixed_texts(guard: Guard, *, copies: int, model: int, seed: int, texts: int = 3000) -> list[Switch]:
    """Decode texts of 300 tokens, three in ten of which copies follow five tokens a round and else none.

    A model's rounds keep 1.1 tokens of all texts, and every round takes as long.
    """
    generator, switches = np.random.default_rng(seed), []
    for text in range(texts):
        is_copied, left = generator.random() < 0.3, 300.0
        while left > 0:
            way = guard.wanted
            tokens = 1 if way not in (copies, model) else 1 + (way == model and generator.random() < 0.1)
            if way == copies and is_copied:
                tokens = 5
            left -= tokens
            switch = guard.note(way=way, batch=1, tokens=tokens, round_ms=1.0, texts=text)
            if switch is not None:
                switches.append(switch)
    return switches


@pytest.mark.parametrize("seed", range(3))
def test_copies_that_win_seldom_and_by_much_are_kept_and_are_taken_up(seed: int) -> None:
    guard = contest(rate=0.01 / 9)
    of_mixed_texts(guard, copies=PLANNED, model=RIVAL, seed=seed, texts=600)
    assert guard.current == PLANNED
    guard = contest(rate=0.01 / 9)
    switches = of_mixed_texts(guard, copies=RIVAL, model=PLANNED, seed=seed)
    assert guard.current == RIVAL and switches[-1].ratio > 1.0


@pytest.mark.parametrize("period", [14, 20, 5000])
def test_what_a_drafter_reads_counts_in_comparisons_that_are_broken_off_too(period: int) -> None:
    ways = [Way(burst=DRAFTED_BURST, share=0.01), Way(burst=DRAFTED_BURST, share=0.01)]
    guard, last, spent, rounds = Guard(0.01, ways), 0, 0.0, 60_000
    for place in range(rounds):
        way = guard.wanted
        if way != last:
            ms = 50.0 if way else 1.0  # the challenger's drafter reads what it has missed
            guard.note_change(ms)
        else:
            ms = 1.0 + way
            guard.note(way=way, batch=8 - place // period % 2, tokens=8, round_ms=ms, texts=place // 30)
        spent += ms * (way == 1)
        last = way
    assert 0.002 < spent / rounds < 0.025


def test_what_a_drafter_reads_before_a_burst_counts_as_rounds_of_it() -> None:
    def rest_behind(change_ms: float) -> int:
        guard = contest()
        guard.hurry()
        rounds = [0, 0]  # until the first burst is over, and until the next of the same challenger
        for part in range(2):
            while guard.wanted != PLAIN:
                guard.note(way=PLANNED, batch=1, tokens=4, round_ms=1.0)
                rounds[part] += 1
                if guard.wanted == RIVAL:
                    while guard.wanted == RIVAL:
                        guard.note(way=RIVAL, batch=1, tokens=1, round_ms=1.0)
            guard.note_change(change_ms)
            while guard.wanted == PLAIN:
                guard.note(way=PLAIN, batch=1, tokens=1, round_ms=1.0)
        return rounds[1]

    assert rest_behind(100.0) - rest_behind(1.0) == pytest.approx((100 - UNSETTLED) / 0.02, rel=0.1)


def test_whatever_speaks_against_the_plan_lets_all_be_compared_at_once() -> None:
    guard, asked = contest(), set()
    played(guard, 40, lambda way, place: 2.0 if way == PLANNED else 1.0)
    guard.hurry()
    for _ in range(2 * (2 * SIDE + DRAFTED_BURST)):
        asked.add(guard.wanted)
        guard.note(way=guard.wanted, batch=1, tokens=4 if guard.wanted == PLANNED else 1, round_ms=1.0)
    assert asked == {PLANNED, PLAIN, RIVAL}


def cells_of(*cells: object) -> Choice:
    return choice_of(replace(drafting_plan(), cells=cells))  # type: ignore[arg-type]


def rivals(choice: Choice, longest: int = LONGEST) -> list[list[tuple[str, str | None]]]:
    """Return label and drafter of every cell's rivals."""
    found = with_rivals(choice, longest)
    assert found.plan is not None
    return [[(one.policy.code, one.drafter) for one in found.rivals_of(cell)] for cell in found.plan.cells]


def test_the_rival_of_a_model_is_what_copies_from_the_text_and_not_another_model() -> None:
    assert rivals(choice_of(drafting_plan())) == [[(COPY.code, "lookup")]]


def test_the_rival_of_copies_is_a_model_that_a_smaller_cell_drafts_with_and_no_other() -> None:
    copying = replace(drafting_cell(4, 100), policy=COPY, drafter="lookup", run_tokens=(0, 2, 2, 4))
    chain = ("chain of 2", "small")
    assert rivals(cells_of(drafting_cell(1, 100), copying)) == [[(COPY.code, "lookup")], [chain]]
    assert rivals(cells_of(replace(copying, batch=1), drafting_cell(4, 100))) == [[], [(COPY.code, "lookup")]]
    assert rivals(cells_of(copying)) == [[]]  # nobody holds the model


def test_a_model_that_is_slower_than_plain_decoding_is_nobody_s_rival_and_copies_may_be() -> None:
    slow = Alternative(label="chain of 2", policy=ChainPolicy(length=2), drafter="small", tokens_per_s=49.0)
    copies = Alternative(label="lookup", policy=COPY, drafter="lookup", tokens_per_s=30.0)
    copying = replace(drafting_cell(4, 100), policy=COPY, drafter="lookup", alternatives=(slow,))
    plain = replace(plain_cell(8, 100), alternatives=(slow, copies))
    found = rivals(cells_of(drafting_cell(1, 100), copying, plain))
    assert found[1:] == [[], [(COPY.code, "lookup")]]


def test_where_whole_requests_chose_the_plan_no_model_reads_prompts_for_a_rival_s_sake() -> None:
    copying = replace(drafting_cell(4, 100), policy=COPY, drafter="lookup", run_tokens=(0, 2, 2, 4))
    choice = cells_of(drafting_cell(1, 100), copying)
    assert choice.plan is not None
    of_requests = replace(choice, plan=replace(choice.plan, new_tokens=64))
    assert rivals(of_requests) == [[(COPY.code, "lookup")], []]


def test_one_rival_of_each_sort_and_the_fastest_of_it() -> None:
    cell = drafting_cell(1, 100)
    others = (
        Alternative(label="hybrid", policy=HYBRID, drafter="small", tokens_per_s=99.0),
        Alternative(label="hybrid", policy=HYBRID, drafter="other", tokens_per_s=98.0),
        *cell.alternatives,
    )
    assert rivals(cells_of(replace(cell, alternatives=others))) == [[(HYBRID.code, "small"), (COPY.code, "lookup")]]


def test_no_rival_changes_the_output_or_needs_more_room_than_there_is() -> None:
    lossy = FlyPolicy(draft=ChainPolicy(length=2), rule=FlyRule())
    cell = drafting_cell(1, 100)
    loses = Alternative(label="lossy", policy=lossy, drafter="lookup", tokens_per_s=200.0)
    with_loss = replace(cell, alternatives=(loses, *cell.alternatives))
    assert rivals(choice_of(replace(drafting_plan(), cells=(with_loss,), version=0))) == [[(COPY.code, "lookup")]]
    assert rivals(choice_of(drafting_plan()), longest=3) == [[]]
    assert with_rivals(choice_of(None), LONGEST) == choice_of(None)


def test_decoders_make_room_for_rivals() -> None:
    choice = with_rivals(choice_of(drafting_plan([(1, 100), (8, 100)])), LONGEST)
    assert choice.plan is not None
    rival = alternative_setup(choice.plan.cells[0], choice.plan.cells[0].alternatives[2])
    assert rival in choice.setups and rival in choice.setups_within(1, 200) and rival in choice.setups_at(8, 200)


def driven(watch: Watch, rounds: int, ms: Callable[[StepConfig], float]) -> None:
    """Run rounds as the watch wants them: whoever drafts keeps 2 tokens; every tenth round ends a text."""
    for place in range(rounds):
        setup = watch.schedule(1, 100)
        kept = [1 if isinstance(setup.policy, PlainPolicy) else 2]
        watch.note(round_of(setup, kept, ms(setup), texts=place % 10 == 0))


def copies_win(setup: StepConfig) -> float:
    """The plan's chain takes 30 ms for its 2 tokens, plain decoding 18 for one, and copies 20 for 2."""
    return {"lookup": 20.0, "plain": 18.0}.get(setup.policy.kind, 30.0)


def test_a_rival_that_wins_takes_over_and_it_is_said() -> None:
    watch = Watch(with_rivals(choice_of(drafting_plan()), LONGEST), QUICK)
    driven(watch, 5000, copies_win)
    (event,) = [one for one in watch.events if one.kind == "switch"]
    assert f"{COPY.label} was faster than chain of 3 by small in " in event.message
    assert f"it decodes by {COPY.label} now" in event.message
    told = watch.prometheus()
    assert 'spectune_is_planned{batch="1",context="100"} 0.0' in told and 'way="rival",policy="lookup' in told


def test_without_a_share_none_is_tried() -> None:
    watch = Watch(with_rivals(choice_of(drafting_plan()), LONGEST), replace(QUICK, rival_share=0.0))
    driven(watch, 1500, copies_win)
    assert 'way="rival"' not in watch.prometheus() and 'way="plain"' in watch.prometheus()
    with pytest.raises(RequestError, match="rival_share"):
        WatchOptions(rival_share=0.6)


def test_a_plan_of_plain_decoding_is_left_for_copies_where_these_are_faster() -> None:
    cell = replace(plain_cell(1, 100), alternatives=drafting_cell(1, 100).alternatives)
    plan = replace(plan_of([(1, 100)]), cells=(cell,))
    watch = Watch(with_rivals(choice_of(plan), LONGEST), QUICK)
    driven(watch, 1500, lambda setup: 20.0)
    (event,) = [one for one in watch.events if one.kind == "switch"]
    assert f"{COPY.label} was faster than plain decoding" in event.message
    bursts = [0]
    for _ in range(500):
        is_plain = isinstance(watch.schedule(1, 100).policy, PlainPolicy)
        bursts = [*bursts[:-1], bursts[-1] + 1] if is_plain else [*bursts, 0]
        driven(watch, 1, lambda setup: 20.0)
    assert (
        0 < max(bursts) <= PLAIN_BURST + UNSETTLED
    )  # as short as where drafts were planned: all of them yield a token


def test_a_rival_whose_drafter_rests_is_taken_for_what_runs_in_its_place() -> None:
    watch = Watch(with_rivals(choice_of(drafting_plan()), LONGEST), QUICK)
    for place in range(2000):
        asked = watch.schedule(1, 100)
        if asked.drafter == "lookup":  # as fast as the plan where it drafts, and it does not
            watch.note(round_of(asked.plain, [1], 20.0, texts=place % 10 == 0, instead_of=asked))
        else:
            watch.note(round_of(asked, [2 if asked.drafter else 1], 20.0, texts=place % 10 == 0))
    assert not watch.events and watch.schedule(1, 100).drafter in ("small", "lookup", None)
    assert 'way="rival"' not in watch.prometheus()


def test_a_page_s_speed_up_is_over_plain_rounds_and_not_over_rivals() -> None:
    kept: list[str] = []
    writer = ObservationWriter(kept.append)
    plan: Plan = drafting_plan()
    subject = Subject(plan_id=7, device=DEVICE.fingerprint, dtype="float32", source="this device", spectune="0.1")
    watch = Watch(with_rivals(choice_of(plan), LONGEST), QUICK, subject=subject, writer=writer)
    driven(watch, 1500, lambda setup: 20.0 if setup.drafter != "lookup" else 80.0)
    watch.flush()
    writer.close()
    (cell,) = kept_cells(plan, [], [from_json(Observation, text) for text in kept])
    assert cell.measured_speedup == pytest.approx(2.0)  # 2 tokens and 1, in 20 ms each
