"""Several ways of decoding in turns: everybody does all of the work, in equal shares, and stalls are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.errors import RequestError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.records.excess import STALL
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring import race as race_module
from spectune.tuning.measuring.decoding import Family, TimedRound, throughput
from spectune.tuning.measuring.race import EngineEntrant, race, undisturbed_ms
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.validate import entrant

from ...support.decoded_runs import random_requests
from ...support.tiny_models import perturbed, tiny_llama

TARGET = tiny_llama(layers=2, seed=1)
FAMILY = Family(target=LeanModel(TARGET), drafters={"small": LeanModel(perturbed(TARGET, 0.02))})
CHAIN = StepConfig(policy=ChainPolicy(length=3), drafter="small")


class Diary:
    """An entrant that decodes nothing and writes down its turns."""

    tokens_per_s = 1.0

    def __init__(self, name: str, pages: list[tuple[str, float]]) -> None:
        self.name, self.pages = name, pages

    def advance(self, share: float) -> None:
        self.pages.append((self.name, share))


def diary(*, turns: int, seed: int) -> list[tuple[str, float]]:
    pages: list[tuple[str, float]] = []
    race([Diary(name, pages) for name in "abc"], turns=turns, seed=seed)
    return pages


def entered(setup: StepConfig, requests: list[Request], batch: int) -> EngineEntrant:
    return entrant("it", setup, FAMILY, requests, batch)


def emitted(one: EngineEntrant) -> int:
    return sum(len(text) for text in one.run.texts)


def rounds(*ms: float, verify_tokens: int = 4, widths: tuple[int, ...] = (1,)) -> list[TimedRound]:
    shape = StepOutput(
        setup=PLAIN,
        context=9,
        sequences=[0],
        kept=[1],
        verify_tokens=verify_tokens,
        widths=widths,
        uncached=1,
        finished=[],
    )
    return [TimedRound(ms=one, round=shape) for one in ms]


def test_every_turn_lets_everybody_do_one_equal_share() -> None:
    pages = diary(turns=4, seed=0)
    turns = [pages[start : start + 3] for start in range(0, 12, 3)]
    assert [sorted(turn) for turn in turns] == [[(name, turn / 4) for name in "abc"] for turn in (1, 2, 3, 4)]


def test_the_order_within_turns_follows_the_seed_and_is_not_always_the_same() -> None:
    pages = diary(turns=20, seed=5)
    assert pages == diary(turns=20, seed=5) != diary(turns=20, seed=6)
    assert len({tuple(name for name, _ in pages[start : start + 3]) for start in range(0, 60, 3)}) > 1


@pytest.mark.parametrize("batch", [1, 3])
def test_a_race_ends_when_everybody_has_emitted_everything(batch: int) -> None:
    requests = random_requests(5, tokens=9)
    field = [entered(PLAIN, requests, batch), entered(CHAIN, requests, batch)]
    race(field, turns=3)
    own = tuple(continuations(FAMILY.target, requests))
    assert [one.run.texts for one in field] == [own, own]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_share_is_exceeded_by_less_than_one_round(share: float) -> None:
    requests = [Request(prompt=(place,), max_new_tokens=20) for place in range(6)]
    one = entered(CHAIN, requests, 3)
    one.advance(share)
    most = 3 * 4 + 3  # three chains kept whole, and the first tokens of three new sequences
    assert share * 120 <= emitted(one) < share * 120 + most


def test_a_share_already_done_asks_for_no_further_round() -> None:
    one = entered(PLAIN, random_requests(4, tokens=9), 2)
    one.advance(0.5)
    before = len(one.run.rounds)
    one.advance(0.5)
    assert len(one.run.rounds) == before


def test_a_sequence_that_ends_early_counts_with_all_it_might_have_emitted() -> None:
    own = continuations(FAMILY.target, [Request(prompt=(3,), max_new_tokens=20)])[0]
    short = Request(prompt=(3,), max_new_tokens=20, stop=frozenset(own[1:2]))
    one = entered(PLAIN, [short, Request(prompt=(5,), max_new_tokens=20)], 1)
    one.advance(0.5)
    assert [len(text) for text in one.run.texts] == [own.index(own[1]) + 1]


def test_a_race_of_sequences_that_all_end_at_their_first_token_comes_to_its_end() -> None:
    requests = [Request(prompt=(place,), max_new_tokens=5, stop=frozenset(range(24))) for place in range(3)]
    one = entered(PLAIN, requests, 2)
    race([one], turns=4)
    assert [len(text) for text in one.run.texts] == [1, 1, 1]
    with pytest.raises(RequestError, match="add prompts"):
        one.tokens_per_s  # noqa: B018


def test_settled_rounds_are_all_but_the_first_of_every_turn() -> None:
    one = entered(PLAIN, random_requests(4, tokens=9), 2)
    for share in (0.5, 1.0):
        one.advance(share)
    rounds = one.run.rounds
    (second,) = (place for place, done in enumerate(rounds) if place and all(done is not kept for kept in one.settled))
    assert one.settled == [*rounds[1:second], *rounds[second + 1 :]] and 1 < second < len(rounds) - 1


def test_speed_is_that_of_the_run_where_nothing_disturbed_it() -> None:
    one = entered(PLAIN, random_requests(4, tokens=9), 2)
    one.advance(1.0)
    done, texts = one.run.rounds, len(one.run.texts)
    assert one.tokens_per_s == pytest.approx(throughput(done, undisturbed_ms(done, {0}), 2, texts))


def test_the_first_round_of_a_turn_counts_with_the_time_of_others_like_it() -> None:
    one = entered(PLAIN, random_requests(1, tokens=5), 1)
    one.advance(0.4)
    alone = one.run.rounds
    assert len(alone) == 1
    assert one.tokens_per_s == pytest.approx(1000.0 / alone[0].ms)
    one.advance(1.0)
    assert one.tokens_per_s == pytest.approx(1000.0 * 2 / sum(r.ms for r in one.run.rounds[2:]))


@pytest.mark.parametrize(
    ("cold", "ms"), [({0, 3}, [2.0, 1.0, 3.0, 2.0]), ({1}, [9.0, 5.0, 3.0, 3.0]), ({0, 1, 2, 3}, [9.0, 1.0, 3.0, 3.0])]
)
def test_a_cold_round_takes_the_mean_of_the_warm_ones_of_its_shape(cold: set[int], ms: list[float]) -> None:
    assert undisturbed_ms(rounds(9.0, 1.0, 3.0, 3.0), cold) == ms


def test_tokens_of_a_cold_round_count() -> None:
    """Turns that end in front of long copies must not make copying look slow."""
    done = [
        replace(r, round=replace(r.round, kept=[kept]))
        for r, kept in zip(rounds(2.0, 2.0, 2.0, 2.0), (9, 1, 9, 1), strict=True)
    ]
    assert throughput(done, undisturbed_ms(done, {0, 2}), 1, 1) == pytest.approx(1000.0 * 20 / 8.0)


def test_a_stall_is_cut_to_five_times_the_median_of_its_shape() -> None:
    assert undisturbed_ms(rounds(1.0, 1.2, 0.8, 70.0)) == [1.0, 1.2, 0.8, pytest.approx(STALL * 1.1)]


def test_a_round_that_is_slow_but_no_stall_is_kept_as_it_is() -> None:
    assert undisturbed_ms(rounds(1.0, 1.0, 1.0, 4.9)) == [1.0, 1.0, 1.0, 4.9]


@pytest.mark.parametrize("other", [rounds(70.0, verify_tokens=60), rounds(70.0, widths=(1, 10, 10))])
def test_a_round_of_another_shape_is_no_stall(other: list[TimedRound]) -> None:
    assert undisturbed_ms([*rounds(1.0, 1.0, 1.0), *other]) == [1.0, 1.0, 1.0, 70.0]


def test_a_turn_begins_when_the_device_has_done_what_others_left_it_with(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    class Told(EngineEntrant):
        def _step(self) -> bool:
            said.append("round")
            return super()._step()

    one = Told("it", FAMILY.decoder(always(PLAIN), names=(), batch=1, capacity=80), random_requests(1, tokens=9), 1)
    monkeypatch.setattr(race_module, "wait_for", lambda device: said.append("waits"))
    for turn in range(1, 4):
        one.advance(turn / 3)
    places = [place for place, what in enumerate(said) if what == "waits"]
    assert len(places) == 3 and places[0] == 0 and {"round"} == set(said) - {"waits"}
