"""Sessions: requests join, are cancelled and stop by their texts, and change nothing in each other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from spectune.errors import RequestError
from spectune.planner.policies import ChainPolicy, LookupPolicy, StaticPolicy, TreePolicy
from spectune.runtime.choice import Choice
from spectune.runtime.decoder import Round
from spectune.runtime.generation import Completion, Event, GenerationSettings
from spectune.runtime.generator import Generator
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.serving import Session
from spectune.runtime.setup import PLAIN, RoundSetup, always

from .decoded_runs import BUSHY
from .plans import plan_of
from .synthetic import model
from .tiny_family import byte_tokenizer
from .tiny_models import perturbed, tiny_llama

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
        always(RoundSetup(policy=policy, drafter=name)),
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


def submitted(session: Session, places: range) -> list[int]:
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


class Watcher:
    """Keeps the rounds it is told of."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def note(self, done: Round, /) -> None:
        self.rounds.append(done)


def test_an_observer_is_told_of_every_round() -> None:
    watcher, choice = Watcher(), Choice(plan=None, source="none", reason="a test")
    watched = Generator(TARGET, TOKENIZER, {}, always(PLAIN), choice, watcher)
    done = watched.generate_batch(PROMPTS[:2], SETTINGS[:2])
    assert [sum(place in one.sequences for one in watcher.rounds) for place in range(2)] == [o.rounds for o in done]
