"""Sessions: requests join, are cancelled and stop by their texts, and change nothing in each other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from spectune.errors import DeviceError, RequestError
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.observer import RoundObserver
from spectune.runtime.engine.prefill import Prefill
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.settings import Completion, Event, GenerationOptions, GenerationSettings
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.plan_choice import Choice

from ..support.decoded_runs import BUSHY
from ..support.plans import plan_of
from ..support.synthetic import model
from ..support.tiny_family import END, byte_tokenizer
from ..support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless

TOKENIZER = byte_tokenizer("to be or not to be")
LLAMA = tiny_llama(layers=1, seed=0, vocabulary=len(TOKENIZER))
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.02))
POLICIES: dict[str, TreePolicy | None] = {
    "plain": None,
    "chain": ChainPolicy(length=5),
    "tree": StaticPolicy(tree=BUSHY),
    "lookup": LookupPolicy(length=4),
}
PROMPTS = ["to be", "or", "not to be or", "be", "to be or not", "or not to"]
SETTINGS = [
    GenerationSettings(max_new_tokens=30),
    GenerationSettings(max_new_tokens=25, temperature=0.8, seed=3),
    GenerationSettings(max_new_tokens=30, temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, seed=4),
    GenerationSettings(max_new_tokens=20, repetition_penalty=1.4),
    GenerationSettings(max_new_tokens=28, temperature=0.7, repetition_penalty=1.2, seed=5),
    GenerationSettings(max_new_tokens=9, temperature=1.5, top_p=0.5, seed=6),
]


@lru_cache
def generator(kind: str = "chain") -> Generator:
    policy = POLICIES[kind]
    if policy is None:
        return Generator(TARGET, TOKENIZER, {}, always(PLAIN), Choice(plan=None, source="none", reason="a test"))
    plan, name = plan_of([(1, 10), (3, 10)]), "lookup" if kind == "lookup" else "small"
    run_tokens = tuple(range(policy.max_verify_tokens + 1))
    cells = tuple(replace(cell, policy=policy, drafter=name, run_tokens=run_tokens) for cell in plan.cells)
    plan = replace(plan, cells=cells, drafters=(("small", model("small")),))
    schedule, choice = (
        always(StepConfig(policy=policy, drafter=name)),
        Choice(plan=plan, source="file", reason="a test"),
    )
    return Generator(TARGET, TOKENIZER, {"small": DRAFTER}, schedule, choice)


@lru_cache
def alone(place: int) -> Completion:
    """Return a prompt's plain continuation by itself."""
    return generator("plain").generate(PROMPTS[place], SETTINGS[place])


def output(done: Completion | None) -> tuple[str, tuple[int, ...], str]:
    assert done is not None
    return done.text, done.tokens, done.finish_reason


def ends(events: list[Event]) -> dict[int, Completion]:
    return {event.handle: event.completion for event in events if event.completion is not None}


def submitted(session: Scheduler, places: range) -> list[int]:
    return [session.submit(PROMPTS[place], SETTINGS[place]) for place in places]


@pytest.mark.parametrize("kind", POLICIES)
def test_every_request_of_a_mixed_batch_gets_what_it_gets_alone_and_plainly(kind: str) -> None:
    done = generator(kind).generate_batch(PROMPTS, SETTINGS, slots=4)
    assert [output(one) for one in done] == [output(alone(place)) for place in range(6)]


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_some_draft_is_accepted_under_every_setting(kind: str) -> None:
    done = generator(kind).generate_batch(PROMPTS[:5], SETTINGS[:5])
    assert all(one.rounds < alone(place).rounds for place, one in enumerate(done))


@pytest.mark.parametrize("kind", POLICIES)
def test_pieces_of_a_session_together_are_the_text(kind: str) -> None:
    session = generator(kind).session(slots=2, longest=64)
    submitted(session, range(6))
    events = list(session.events())
    for place in range(6):
        told = "".join(event.piece for event in events if event.handle == place)
        assert told == alone(place).text == ends(events)[place].text


def test_events_that_nobody_fetched_are_told_by_the_next_step() -> None:
    session, fetched = generator("chain").session(slots=3, longest=64), []
    submitted(session, range(6))
    while not session.is_idle:
        for event in session.events():  # each time the first is enough
            fetched.append(event)
            break
    assert [output(ends(fetched)[place]) for place in range(6)] == [output(alone(place)) for place in range(6)]
    for place in range(6):
        assert "".join(event.piece for event in fetched if event.handle == place) == alone(place).text


def test_a_round_tells_how_many_have_left_since_the_one_before() -> None:
    session = generator("plain").session(slots=3, longest=64)
    handles = submitted(session, range(3))
    session.step()
    decoder = session._engine
    assert decoder.step().left == 0
    session.cancel(handles[0])
    rounds = [decoder.step()]
    assert rounds[0].left == 1 and not rounds[0].finished
    while decoder.running:
        rounds.append(decoder.step())
    assert [done.left for done in rounds[1:]] == [len(done.finished) for done in rounds[1:]]
    assert sum(done.left for done in rounds) == 3


@pytest.mark.parametrize("kind", POLICIES)
def test_a_stream_tells_the_text_in_pieces(kind: str) -> None:
    told = list(generator(kind).stream(PROMPTS[0], SETTINGS[0]))
    assert "".join(told) == alone(0).text and len(told) > 2 and all(told)


@pytest.mark.parametrize("kind", POLICIES)
def test_requests_that_join_later_change_nothing_and_get_their_own_text(kind: str) -> None:
    session = generator(kind).session(slots=3, longest=64)
    submitted(session, range(2))
    events = [event for _ in range(3) for event in session.step()]
    submitted(session, range(2, 6))
    events += session.events()
    assert {place: output(one) for place, one in ends(events).items()} == {p: output(alone(p)) for p in range(6)}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_cancelled_request_leaves_its_beginning_and_the_others_alone(kind: str) -> None:
    session = generator(kind).session(slots=3, longest=64)
    submitted(session, range(6))
    events = [event for _ in range(2) for event in session.step()]
    session.cancel(0)  # runs in the first slot: the last one moves
    session.cancel(5)  # waits
    events += session.events()
    done = ends(events)
    assert [done[place].finish_reason for place in (0, 5)] == ["cancelled"] * 2
    assert 0 < len(done[0].tokens) < 30 and done[0].tokens == alone(0).tokens[: len(done[0].tokens)]
    assert (done[5].text, done[5].tokens, done[5].rounds) == ("", (), 0)
    assert [output(done[place]) for place in range(1, 5)] == [output(alone(place)) for place in range(1, 5)]


def test_a_cancelled_request_s_slot_is_given_to_one_that_waits() -> None:
    session = generator().session(slots=1, longest=64)
    submitted(session, range(2))
    session.step()
    session.cancel(0)
    assert {event.handle for event in session.step()} == {0, 1}


def test_cancelling_what_has_ended_does_nothing_and_what_never_was_is_an_error() -> None:
    session = generator().session(slots=1, longest=64)
    handle = session.submit("to be", GenerationSettings(max_new_tokens=1))
    (event,) = session.events()
    session.cancel(handle)
    assert event.finished == "length" and session.is_idle and session.step() == []
    with pytest.raises(RequestError, match="there is no request 1; 1 were submitted"):
        session.cancel(1)


def test_a_request_that_does_not_fit_is_refused_and_the_session_goes_on() -> None:
    session = generator().session(slots=1, longest=20)
    with pytest.raises(RequestError, match="and there is room for 20; shorten the prompt"):
        session.submit("to be", GenerationSettings(max_new_tokens=20))
    session.submit("to be", GenerationSettings(max_new_tokens=10))
    assert [len(done.tokens) for done in ends(list(session.events())).values()] == [10]


def stop_in_the_middle(place: int, length: int = 3) -> tuple[str, str]:
    """Return a string that first occurs in the middle of a text, and the text before it."""
    text = alone(place).text
    for start in range(len(text) // 3, len(text) - length):
        stop = text[start : start + length]
        if text.index(stop) == start and "\ufffd" not in stop:
            return stop, text[:start]
    raise AssertionError(f"no string of {length} characters is new in the middle of {text!r}")


@pytest.mark.thinned
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", POLICIES)
def test_a_stop_string_ends_text_and_tokens_where_plain_decoding_ends_them(kind: str, place: int) -> None:
    stop, before = stop_in_the_middle(place)
    settings = replace(SETTINGS[place], stop=("never said", stop))
    done, plain = (generator(one).generate(PROMPTS[place], settings) for one in (kind, "plain"))
    assert output(done) == output(plain)
    assert (done.text, done.finish_reason) == (before, "stop")
    assert done.tokens == alone(place).tokens[: len(done.tokens)]
    texts = [TOKENIZER.decode(list(done.tokens[:count])) for count in (len(done.tokens), len(done.tokens) - 1)]
    assert [stop in text for text in texts] == [True, False]


@pytest.mark.parametrize("kind", POLICIES)
def test_a_stream_shows_nothing_of_a_stop_string(kind: str) -> None:
    stop, before = stop_in_the_middle(0, 4)
    told = list(generator(kind).stream(PROMPTS[0], SETTINGS[0], stop=[stop]))
    assert "".join(told) == before


def test_a_stop_string_of_one_request_leaves_the_others_alone() -> None:
    stop, before = stop_in_the_middle(0)
    settings = [replace(SETTINGS[0], stop=(stop,)), *SETTINGS[1:]]
    done = generator().generate_batch(PROMPTS, settings, slots=3)
    assert done[0].text == before
    assert [output(one) for one in done[1:]] == [output(alone(place)) for place in range(1, 6)]


@pytest.mark.parametrize("kind", POLICIES)
def test_the_end_of_text_stops_and_is_not_shown(kind: str) -> None:
    """At so high a temperature every 300th token or so is the one that ends a text."""
    settings = GenerationSettings(max_new_tokens=24, temperature=50.0)
    done = generator(kind).generate_batch(["to be"] * 60, settings)
    assert [output(one) for one in done] == [output(one) for one in hot()]
    stopped = [one for one in done if one.finish_reason == "stop"]
    assert len(stopped) > 1 and all(one.tokens[-1] == TOKENIZER.eos_token_id for one in stopped)
    assert all(one.text == TOKENIZER.decode(list(one.tokens[:-1])) for one in stopped)


@lru_cache
def hot() -> list[Completion]:
    return generator("plain").generate_batch(["to be"] * 60, GenerationSettings(max_new_tokens=24, temperature=50.0))


def test_a_stop_string_that_is_a_special_token_ends_the_text_at_it() -> None:
    place, expected = next((place, one) for place, one in enumerate(hot()) if one.finish_reason == "stop")
    choice = Choice(plan=None, source="none", reason="a test")
    endless = Generator(TARGET, TOKENIZER, {}, always(PLAIN), choice, ends=frozenset())
    settings = GenerationSettings(max_new_tokens=24, temperature=50.0, seed=place, stop=("never said", END))
    assert endless.generate("to be", settings) == expected


class Watcher:
    """Keeps the rounds it is told of."""

    def __init__(self) -> None:
        self.rounds: list[StepOutput] = []

    def note(self, done: StepOutput, /) -> None:
        self.rounds.append(done)


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([{}, {"top_p": 0.9}], 0.0),  # nothing is cut off where the best token is taken
        ([{"temperature": 0.8}] * 2, 0.8),
        ([{}, {"temperature": 0.8}], None),
        ([{}, {"repetition_penalty": 1.2}], None),
        ([{"temperature": 0.8}, {"temperature": 0.8, "top_k": 20}], None),
    ],
)
def test_a_round_tells_the_temperature_where_nothing_else_says_how_it_draws(
    drawn: list[GenerationOptions], told: float | None
) -> None:
    watcher = Watcher()
    decoder = Engine(TARGET, {}, always(PLAIN), slots=2, capacity=64)
    session = Scheduler(decoder, TOKENIZER, longest=64, observer=watcher)
    for options in drawn:
        session.submit("to be", GenerationSettings(max_new_tokens=9), **options)
    session.step()
    assert [done.temperature for done in watcher.rounds] == [told]


def test_an_observer_is_told_of_every_round() -> None:
    watcher, choice = Watcher(), Choice(plan=None, source="none", reason="a test")
    watched = Generator(TARGET, TOKENIZER, {}, always(PLAIN), choice, watcher)
    done = watched.generate_batch(PROMPTS[:2], SETTINGS[:2])
    assert [sum(place in one.sequences for one in watcher.rounds) for place in range(2)] == [o.rounds for o in done]


LONG = "not to be or to be or not to be"
LENGTH = len(TOKENIZER(LONG)["input_ids"])  # more than of any of PROMPTS


class Cramped(LeanModel):
    """A model that has no memory to read a prompt of so many tokens while others run, or at all."""

    def __init__(self, longest: int, *, is_ever_read: bool = True) -> None:
        super().__init__(LLAMA)
        self.longest, self.is_ever_read, self.others, self.refused = longest, is_ever_read, 0, 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        if step.take is not None and step.tokens.shape[1] >= self.longest and (self.others or not self.is_ever_read):
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(step, cache)


def cramped_session(target: Cramped, observer: RoundObserver | None = None, slots: int = 2) -> Scheduler:
    decoder = Engine(target, {}, always(PLAIN), slots=slots, capacity=64)
    return Scheduler(decoder, TOKENIZER, longest=64, observer=observer)


def test_a_prompt_without_memory_waits_until_another_request_has_left() -> None:
    target = Cramped(longest=LENGTH)
    session = cramped_session(target)
    session.submit(PROMPTS[1], SETTINGS[1])
    events = session.step()
    target.others = 1
    long = session.submit(LONG, SETTINGS[0])
    events += session.step()
    assert not [event for event in events if event.handle == long]
    target.others = 0
    events += session.events()
    assert output(ends(events)[0]) == output(alone(1))
    whole = generator("plain").generate(LONG, SETTINGS[0])
    assert output(ends(events)[long]) == output(whole)


def test_a_prompt_without_memory_is_not_read_in_vain_in_every_round() -> None:
    target = Cramped(longest=LENGTH)
    session = cramped_session(target)
    session.submit(PROMPTS[1], SETTINGS[1])
    session.step()
    target.others = 1
    session.submit(LONG, SETTINGS[0])
    for _ in range(5):
        session.step()
    assert target.refused == 1


def test_a_cramped_prompt_that_is_cancelled_holds_nobody_up() -> None:
    target = Cramped(longest=LENGTH)
    session = cramped_session(target, slots=3)
    session.submit(PROMPTS[0], SETTINGS[0])
    events = session.step()
    target.others = 1
    long, short = session.submit(LONG, SETTINGS[0]), session.submit(PROMPTS[1], SETTINGS[1])
    events += session.step()
    session.cancel(long)
    events += session.step()
    assert [event.handle for event in events if event.handle == short]


def test_a_prompt_that_never_finds_memory_fails_and_the_others_go_on() -> None:
    session = cramped_session(Cramped(longest=LENGTH, is_ever_read=False))
    handles = [session.submit(LONG, SETTINGS[0]), session.submit(PROMPTS[1], SETTINGS[1])]
    done = ends(list(session.events()))
    assert done[handles[0]].finish_reason == "failed" and "out of memory" in done[handles[0]].error
    assert output(done[handles[1]]) == output(alone(1)) and session.is_idle


def test_a_prompt_without_memory_raises_where_it_is_alone() -> None:
    choice = Choice(plan=None, source="none", reason="a test")
    cramped = Generator(Cramped(longest=LENGTH, is_ever_read=False), TOKENIZER, {}, always(PLAIN), choice)
    with pytest.raises(DeviceError, match=r"could not be read: .*out of memory"):
        cramped.generate(LONG, SETTINGS[0])
    with pytest.raises(DeviceError, match="could not be read"):
        list(cramped.stream(LONG, SETTINGS[0]))
    assert [one.finish_reason for one in cramped.generate_batch([LONG, "or"])] == ["failed", "length"]


class Impatient:
    """Raises in the round in which a request ends."""

    def note(self, done: StepOutput, /) -> None:
        if done.finished:
            raise RuntimeError("the caller's own")


def test_what_an_observer_raises_loses_no_event() -> None:
    session = cramped_session(Cramped(longest=99), Impatient())
    session.submit(PROMPTS[1], SETTINGS[1])
    told: list[Event] = []
    with pytest.raises(RuntimeError, match="the caller's own"):
        told.extend(event for _ in range(99) for event in session.step())
    told += session.events()
    assert output(ends(told)[0]) == output(alone(1)) and session.is_idle


def test_what_a_prompt_s_reading_raises_is_raised_once_and_the_request_has_failed() -> None:
    class Failing(LeanModel):
        def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
            raise ValueError("device-side assert")

    session = Scheduler(Engine(Failing(LLAMA), {}, always(PLAIN), slots=2, capacity=64), TOKENIZER, longest=64)
    session.submit(PROMPTS[1], SETTINGS[1])
    with pytest.raises(ValueError, match="device-side"):
        session.step()
    (event,) = session.step()
    assert event.finished == "failed" and session.is_idle


def test_a_prompt_with_a_token_that_the_target_does_not_know_is_refused_by_its_number() -> None:
    session = Scheduler(Engine(TARGET, {}, always(PLAIN), slots=2, capacity=64), TOKENIZER, longest=64)
    handle = session.submit(PROMPTS[1], SETTINGS[1])
    for token in (len(TOKENIZER), -1, IMAGE_IDS - 1):
        with pytest.raises(RequestError, match=f"the prompt holds token {token} and the target knows"):
            session.enqueue(Request(prompt=(1, token), max_new_tokens=3))
    assert [event.handle for event in session.events() if event.completion] == [handle]


def test_what_is_raised_behind_a_request_that_has_joined_leaves_it_and_those_that_wait() -> None:
    class Late(Engine):
        is_late = True

        def read_on(self, reading: Prefill, most: int) -> None:
            super().read_on(reading, most)
            if self.is_late:
                self.is_late = False
                raise TimeoutError("an alarm of the caller's")

    session = Scheduler(Late(TARGET, {}, always(PLAIN), slots=2, capacity=64), TOKENIZER, longest=64)
    handles = [session.submit(PROMPTS[1], SETTINGS[1]) for _ in range(3)]
    with pytest.raises(TimeoutError):
        session.step()
    done = {event.handle: event.completion for event in session.events() if event.completion}
    assert sorted(done) == handles and session.is_idle
    assert len({(one.text, one.finish_reason) for one in done.values()}) == 1


class Lengths(LeanModel):
    """A model that writes down how many tokens of prompts it reads at once."""

    def __init__(self) -> None:
        super().__init__(LLAMA)
        self.read: list[int] = []

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        if step.take is not None:
            self.read.append(step.tokens.shape[1])
        return super().forward(step, cache)


def reading_session(kind: str, target: LeanModel, slots: int = 3) -> Scheduler:
    policy = POLICIES[kind]
    setup, drafters = PLAIN, {}
    if policy is not None:
        name = "lookup" if kind == "lookup" else "small"
        setup = StepConfig(policy=policy, drafter=name)
        own: Drafter = LookupDrafter() if kind == "lookup" else ModelDrafter(DRAFTER, slots=slots, capacity=120)
        drafters = {name: own}
    decoder = Engine(target, drafters, always(setup), slots=slots, capacity=120)
    return Scheduler(decoder, TOKENIZER, longest=80, prefill_tokens=4)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_long_prompt_is_read_between_others_rounds_and_changes_no_text(kind: str) -> None:
    target = Lengths()
    session = reading_session(kind, target)
    submitted(session, range(2))
    events = session.step()
    target.read.clear()
    long = session.submit(LONG, SETTINGS[0])
    events += session.step()
    assert target.read == [4]
    events += session.events()
    assert max(target.read) <= 4 and sum(target.read) == LENGTH
    done = ends(events)
    assert [output(done[place]) for place in range(2)] == [output(alone(place)) for place in range(2)]
    assert output(done[long]) == output(generator("plain").generate(LONG, SETTINGS[0]))


@pytest.mark.parametrize("kind", POLICIES)
def test_a_prompt_that_is_read_while_others_leave_keeps_its_place(kind: str) -> None:
    session = reading_session(kind, LeanModel(LLAMA))
    handles = submitted(session, range(2))
    events = session.step()
    long = session.submit(LONG, SETTINGS[0])
    events += session.step()
    session.cancel(handles[0])
    events += session.step()
    session.cancel(handles[1])
    events += session.events()
    assert output(ends(events)[long]) == output(generator("plain").generate(LONG, SETTINGS[0]))


def test_a_prompt_that_is_cancelled_while_it_is_read_gives_its_slot_back() -> None:
    session = reading_session("chain", LeanModel(LLAMA), slots=2)
    (first,) = submitted(session, range(1))
    events = session.step()
    long, last = session.submit(LONG, SETTINGS[0]), session.submit(PROMPTS[1], SETTINGS[1])
    events += session.step()
    session.cancel(long)
    events += session.events()
    done = ends(events)
    assert done[long].finish_reason == "cancelled" and done[long].tokens == ()
    assert [output(done[handle]) for handle in (first, last)] == [output(alone(0)), output(alone(1))]


def test_a_prompt_is_read_whole_where_nobody_reads_along() -> None:
    target = Lengths()
    decoder = Engine(target, {}, always(PLAIN), slots=2, capacity=120)
    session = Scheduler(decoder, TOKENIZER, longest=80, piecewise=False, prefill_tokens=4)
    session.submit(PROMPTS[0], SETTINGS[0])
    session.step()
    session.submit(LONG, SETTINGS[0])
    session.step()
    assert target.read[-1] == LENGTH


def test_prompts_that_come_with_the_first_are_read_between_its_rounds_too() -> None:
    session = generator("plain").session(slots=4, longest=64, prefill_tokens=LENGTH)
    submitted(session, range(1, 2))
    for _ in range(3):
        session.submit(LONG, SETTINGS[0])
    waiting = [len(session._waiting) for _ in range(3) if session.step()]
    assert waiting == [2, 1, 0]


def test_settings_may_be_given_as_keywords_over_others() -> None:
    session = generator("chain").session(slots=2, longest=64)
    plainly = session.submit(PROMPTS[1], max_new_tokens=25, temperature=0.8, seed=3)
    over = session.submit(PROMPTS[1], SETTINGS[0], max_new_tokens=25, temperature=0.8, seed=3)
    done = ends(list(session.events()))
    assert output(done[plainly]) == output(done[over]) == output(alone(1))


def test_a_session_that_may_read_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="prefill_tokens must be at least 1, got 0"):
        generator().session(longest=64, prefill_tokens=0)
