"""What texts tell when they have ended: the rounds that ways without a model would have taken."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.runtime.batch.sequence import Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.batch.stopwatch import Stopwatch
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.fallbacks import with_rivals
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.watch.contest import FIRST, LEAST_LOSS, LEAST_SAVED, Contest
from spectune.runtime.watch.decoded import DecodedTexts, is_told_by_texts, rounds_along, stretches_by
from spectune.runtime.watch.guard import DRAFTED_BURST, Guard, Way
from spectune.runtime.watch.ledger import Ledger, WatchedCell
from spectune.runtime.watch.options import WatchOptions
from spectune.runtime.watch.watch import REPLAYED, Watch, utc_now

from ...lossless.test_text_drafts import POLICIES
from ...support.decoded_runs import random_requests, run
from ...support.tiny_models import tiny_llama
from ...support.watched_rounds import choice_of, drafting_plan, finished_text, round_of

TARGET = LeanModel(tiny_llama(layers=2, seed=0))
COPY = StepConfig(policy=POLICIES["suffix tree"], drafter="lookup")
CHAIN = StepConfig(policy=ChainPolicy(length=2), drafter="small")


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_text_tells_how_many_rounds_a_decoder_takes(policy: TreePolicy, temperature: float) -> None:
    setup = StepConfig(policy=policy, drafter="lookup")
    requests = random_requests(5, tokens=40, temperature=temperature)
    done = run(TARGET, requests, always(setup), {"lookup": LookupDrafter()}, slots=2)
    for index, (request, output) in enumerate(zip(requests, done.outputs, strict=True)):
        tokens, begin = [*request.prompt, *output], len(request.prompt) + 1
        taken = sum(one.sequences.count(index) for one in done.rounds)
        assert rounds_along(setup, tokens, [(begin, len(tokens))]) == taken
        assert rounds_along(PLAIN, tokens, [(begin, len(tokens))]) == len(output) - 1


def test_of_a_round_that_goes_beyond_a_stretch_its_share_counts() -> None:
    text = [1, 2, 3, 4] * 12  # of which a round keeps 14 tokens, or what is left
    assert rounds_along(COPY, text, [(30, 44)]) == 1.0
    assert rounds_along(COPY, text, [(30, 36), (40, 43)]) == pytest.approx(6 / 14 + 3 / 8)


def test_stretches_are_where_one_way_decoded() -> None:
    rounds = [(CHAIN, 2), (CHAIN, 1), (COPY, 3), (CHAIN, 2), (COPY, 1)]
    assert stretches_by(CHAIN, rounds, prompt=4) == [(5, 8), (11, 13)]
    assert stretches_by(COPY, rounds, prompt=4) == [(8, 11), (13, 14)]


def test_ways_that_ask_a_model_are_not_told_by_texts() -> None:
    assert is_told_by_texts(PLAIN) and is_told_by_texts(COPY) and not is_told_by_texts(CHAIN)


def test_texts_that_were_not_followed_from_their_beginning_tell_nothing() -> None:
    texts = DecodedTexts()
    assert not texts.note(round_of(CHAIN, [2, 1], 1.0), CHAIN)
    assert not texts.note(round_of(CHAIN, [3], 1.0), CHAIN)  # the second one was cancelled
    ended = finished_text(*range(1 + 2 + 3 + 2))
    followed = [(CHAIN, 2), (CHAIN, 3), (CHAIN, 2)]
    assert texts.note(round_of(CHAIN, [2], 1.0, finished=(ended,)), CHAIN) == [(ended, followed)]
    assert not texts.note(round_of(CHAIN, [2], 1.0, finished=(ended,)), CHAIN)


def test_a_number_that_another_text_has_had_tells_of_its_own_rounds_alone() -> None:
    texts = DecodedTexts()
    for _ in range(3):  # calls whose texts end outside of rounds, at a stop string
        assert not texts.note(round_of(CHAIN, [2], 1.0, joined=(0,)), CHAIN)
        assert not texts.note(round_of(CHAIN, [3], 1.0), CHAIN)
    ended = finished_text(*range(1 + 4 + 1))
    assert not texts.note(round_of(CHAIN, [4], 1.0, joined=(0,)), CHAIN)
    assert texts.note(round_of(CHAIN, [1], 1.0, finished=(ended,)), CHAIN) == [(ended, [(CHAIN, 4), (CHAIN, 1)])]


def test_rounds_tell_once_who_has_joined() -> None:
    done = run(TARGET, random_requests(5, tokens=6), always(PLAIN), slots=2)
    told = [index for one in done.rounds for index in one.joined]
    first = [next(place for place, one in enumerate(done.rounds) if index in one.sequences) for index in range(5)]
    assert sorted(told) == [0, 1, 2, 3, 4]
    assert all(index in done.rounds[place].joined for index, place in enumerate(first))


def rounds_until_left(*, tells: bool, speed: float, seed: int, rounds: int = 30_000) -> int | None:
    """Decode texts of 40 rounds by a way whose tokens a round scatter; return when its rival takes over, if ever.

    Both keep 1 token of most rounds and 12 of some; how hard a text is they feel alike.
    """
    guard = Guard(0.01, [Way(burst=DRAFTED_BURST, share=0.01)] * 2)
    generator = np.random.default_rng(seed)
    for text in range(rounds // 40):
        ease = 0.1 * generator.random()
        for place in range(40):
            way = guard.wanted
            tokens = 12 if generator.random() < ease else 1
            ms = float(np.exp(0.1 * generator.standard_normal())) / (speed if way else 1.0)
            if guard.note(way=way, batch=1, tokens=tokens, round_ms=ms, texts=text) is not None:
                return 40 * text + place
        if tells and guard.current == 0:
            guard.note_text(1, 40, 40.0 * float(np.exp(0.17 * generator.standard_normal() - 0.17**2 / 2)))
    return None


@pytest.mark.parametrize("seed", range(3))
def test_a_rival_that_is_a_tenth_faster_is_found_by_what_texts_tell(seed: int) -> None:
    taken = rounds_until_left(tells=True, speed=1.11, seed=seed)
    assert taken is not None and taken < 12_000
    assert rounds_until_left(tells=False, speed=1.11, seed=seed) is None


def test_texts_that_tell_of_no_saving_let_a_way_be_left_as_rarely_as_stated() -> None:
    left = sum(rounds_until_left(tells=True, speed=1.02, seed=seed, rounds=6000) is not None for seed in range(60))
    assert left <= int(binom.ppf(0.999, 60, 0.01))


@pytest.mark.parametrize("speed", [0.5, 0.9])
def test_texts_cannot_speak_against_the_clock(speed: float) -> None:
    assert rounds_until_left(tells=True, speed=speed, seed=0, rounds=10_000) is None


def test_losses_are_counted_whole_until_enough_is_known_and_as_the_largest_before_then() -> None:
    def money(*saved: float) -> float:
        contest = Contest(0)
        for one in saved:
            contest.pass_round()
            contest.add(LEAST_SAVED + one, 1.0)
        return contest.money

    known = [0.1] * FIRST
    assert money(*known, -0.6) == pytest.approx(money(*known, -LEAST_LOSS))  # the first of its size
    assert money(*known, -0.6, -0.6) == pytest.approx(money(*known, -0.6, -1.0))
    assert money(*known, -0.6, 0.3) < money(*known, -0.25, 0.3)  # so gains count less from then on
    assert money(-0.6) < money(-0.25)


def test_replaying_keeps_to_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Sequence] = []
    monkeypatch.setattr(WatchedCell, "note_text", lambda cell, text, rounds: told.append(text))
    monkeypatch.setattr(Stopwatch, "ms", lambda stopwatch, first, second: 1.0)
    watch = Watch(with_rivals(choice_of(drafting_plan()), 2048))
    for _ in range(200):
        watch.note(round_of(watch.schedule(1, 100), [2], 20.0, texts=1, finished=(finished_text(1, 2, 3),)))
    assert len(told) == pytest.approx(200 * 20.0 * REPLAYED, abs=1)


def test_a_text_tells_of_the_rounds_that_the_current_way_took_and_of_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, float]] = []
    monkeypatch.setattr(Guard, "note_text", lambda guard, *what: told.append(what))
    (cell,) = Ledger(with_rivals(choice_of(drafting_plan()), 2048), WatchOptions(), None, utc_now).cells
    planned, plain, copies = (lane.setup for lane in cell.lanes)
    cell.note_text(finished_text(*[1, 2] * 5), [(planned, 2), (planned, 2), (copies, 3), (planned, 2)])
    assert told == [(1, 3, 6.0), (2, 3, pytest.approx(1 + 1 / 3 + 1))]  # copies keep three tokens a round
    cell.note_text(finished_text(1, 2, 1), [(plain, 1), (plain, 1)])
    assert len(told) == 2
