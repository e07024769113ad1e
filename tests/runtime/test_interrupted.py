"""Sessions whose steps are broken off: what somebody stops anywhere goes on with the next step, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import pytest

from spectune.runtime.batch.faults import Fault
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine import cache_slots as slots_file
from spectune.runtime.engine.cache_slots import CacheSlots
from spectune.runtime.engine.detokenizer import Detokenizer
from spectune.runtime.engine.drafting import Drafting
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.settings import Event, GenerationSettings
from spectune.runtime.engine.step import TargetVerifier
from spectune.runtime.engine.step_output import StepOutput

from ..support.pairwise import crossed
from .test_serving import PROMPTS, SETTINGS, TARGET, TOKENIZER, alone, ends, generator, output, submitted

pytestmark = pytest.mark.lossless

PLACES: dict[str, tuple[object, str]] = {
    "a prompt's first token is drawn": (slots_file, "draw"),
    "a prompt is read": (Engine, "read_on"),
    "a prompt gets a slot": (CacheSlots, "_resume"),
    "a request that has joined is taken off the waiting ones": (Scheduler, "_welcome"),
    "drafters hear of sequences": (Drafting, "keep_up"),
    "drafters read along": (Drafting, "read_along"),
    "drafts are verified": (TargetVerifier, "verify"),
    "a round is committed": (slots_file, "commit"),
    "texts are read": (Detokenizer, "read"),
    "texts end": (Detokenizer, "finish"),
    "a sequence leaves": (CacheSlots, "leave"),
}
A_CACHE_MOVES = (ModelDrafter, "move")  # no session calls it whose drafts are copied from the text
MOMENTS: dict[str, Callable[[int], int]] = {  # of so many calls
    "first": lambda calls: 1,
    "midway": lambda calls: (calls + 1) // 2,
    "last": lambda calls: calls,
}


def broken_off(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, at: int, *, is_done: bool = False) -> None:
    """Let somebody press Ctrl-C when a function is called for the `at`-th time.

    With `is_done` it has done its work by then, and its caller does not hear of it.
    """
    called, real = [0], getattr(owner, name)

    def pressed(*values: Any, **named: Any) -> Any:
        called[0] += 1
        is_now = called[0] == at
        if is_now and not is_done:
            raise KeyboardInterrupt
        found = real(*values, **named)
        if is_now:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, pressed)


def faults_of(monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """Return where the faults of all rounds to come gather."""
    faults: list[Fault] = []
    real = Engine.step

    def heard(decoder: Engine, setup: StepConfig | None = None) -> StepOutput:
        done = real(decoder, setup)
        faults.extend(done.faults)
        return done

    monkeypatch.setattr(Engine, "step", heard)
    return faults


def run_through(session: Scheduler) -> tuple[list[Event], int]:
    events, breaks = [], 0
    while not session.is_idle:
        try:
            events += session.step()
        except KeyboardInterrupt:
            breaks += 1
    return events, breaks


def begun(kind: str) -> tuple[Scheduler, list[int]]:
    """Return a session with six requests, and two more that end with their first token."""
    session = generator(kind).session(slots=3, longest=64, prefill_tokens=2)
    submitted(session, range(6))
    return session, [session.submit(PROMPTS[0], GenerationSettings(max_new_tokens=1)) for _ in range(2)]


@cache
def calls(kind: str, owner: object, name: str) -> int:
    """Return how often such a session calls a function where nobody disturbs it."""
    with mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)) as called:
        assert run_through(begun(kind)[0])[1] == 0
    return called.call_count


def assert_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, kind: str, where: tuple[object, str], moment: str, is_done: bool
) -> None:
    expected = [output(alone(place)) for place in range(6)]
    at = MOMENTS[moment](calls(kind, *where))
    session, short = begun(kind)
    faults = faults_of(monkeypatch)
    broken_off(monkeypatch, *where, at, is_done=is_done)
    events, breaks = run_through(session)
    assert breaks == 1
    done = ends(events)
    assert [output(done[place]) for place in range(6)] == expected
    assert [done[handle].tokens for handle in short] == [alone(0).tokens[:1]] * 2
    for place in range(6):
        assert "".join(event.piece for event in events if event.handle == place) == expected[place][0]
    assert not faults and session._engine.is_faultless and session._engine._slots._reading is None


@crossed(kind=("chain", "lookup"), where=PLACES, moment=MOMENTS, is_done=(False, True))
def test_a_step_that_is_broken_off_loses_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, where: str, moment: str, is_done: bool
) -> None:
    assert_nothing_is_lost(monkeypatch, kind, PLACES[where], moment, is_done)


@pytest.mark.thinned
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_that_is_broken_off_where_a_drafter_s_cache_moves_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, moment: str, is_done: bool
) -> None:
    assert_nothing_is_lost(monkeypatch, "chain", A_CACHE_MOVES, moment, is_done)


def test_a_target_that_has_no_memory_for_many_rounds_costs_no_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    session = generator("chain").session(slots=2, longest=64)
    handles, faults = submitted(session, range(3)), faults_of(monkeypatch)
    events = session.step()

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    for _ in range(5):
        with monkeypatch.context() as patched:
            patched.setattr(TargetVerifier, "verify", full)
            with pytest.raises(MemoryError):
                session.step()
    events += list(session.events())
    assert [output(ends(events)[handle]) for handle in handles] == [output(alone(place)) for place in range(3)]
    assert not faults and session._engine.is_faultless


def test_a_prompt_s_reading_that_is_broken_off_behind_its_end_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody holds the decoder itself."""
    decoder = Engine(TARGET, {}, always(PLAIN), slots=2, capacity=64)
    session = Scheduler(decoder, TOKENIZER, longest=64)
    request = session._states[session.submit("not to be or", SETTINGS[0])].request
    reading = decoder.begin(request)
    broken_off(monkeypatch, slots_file, "draw", 1)
    with pytest.raises(KeyboardInterrupt):
        decoder.read_on(reading, 99)
    assert reading.left == len(request.prompt) and not decoder.running
    decoder.read_on(reading, 99)
    assert decoder.running == [reading.sequence] and len(reading.sequence.tokens) == len(request.prompt) + 1


@pytest.mark.parametrize(("reads_behind", "expected"), [(False, [False] * 4), (True, [True, True, False, False])])
def test_rounds_behind_a_prompt_that_a_device_still_reads_say_so(reads_behind: bool, expected: list[bool]) -> None:
    decoder = Engine(TARGET, {}, always(PLAIN), slots=2, capacity=64)
    session = Scheduler(decoder, TOKENIZER, longest=64)
    decoder._slots._reads_behind = reads_behind  # as where the target lies on a GPU
    for _ in range(2):
        decoder.admit(session._states[session.submit("not to be or", SETTINGS[0])].request)
        assert [decoder.step().is_behind for _ in range(4)] == expected


def test_what_ended_in_a_step_that_was_broken_off_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    session = generator("plain").session(slots=1, longest=64)
    (handle,) = submitted(session, range(1, 2))
    with monkeypatch.context() as patched:
        broken_off(patched, Detokenizer, "finish", 1)
        with pytest.raises(KeyboardInterrupt):
            list(session.events())
    session.cancel(handle)
    (event,) = session.step()
    assert output(event.completion) == output(alone(1)) and session.is_idle


def cancelled_and_stepped(session: Scheduler, handle: int) -> None:
    session.cancel(handle)
    session.step()


@pytest.mark.thinned
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    ("place", "owner", "name"),
    [
        (0, CacheSlots, "leave"),  # it is decoded, and its slot is given to another one
        (0, Drafting, "keep_up"),
        (0, ModelDrafter, "move"),
        (0, Detokenizer, "finish"),
        (5, Scheduler, "_abandon"),  # it waits
        (5, Detokenizer, "finish"),
    ],
)
def test_a_request_whose_cancelling_is_broken_off_is_cancelled_by_the_next_step(
    monkeypatch: pytest.MonkeyPatch, place: int, owner: object, name: str, is_done: bool
) -> None:
    session = generator("chain").session(slots=3, longest=64)
    waiting = 0 if name == "move" else 3  # else one of them takes the slot, and nobody moves
    others = [other for other in submitted(session, range(3 + waiting)) if other != place]
    events = [*session.step(), *session.step()]
    with monkeypatch.context() as patched:
        broken_off(patched, owner, name, 1, is_done=is_done)
        with pytest.raises(KeyboardInterrupt):
            cancelled_and_stepped(session, place)
    events += session.step()
    assert ends(events)[place].finish_reason == "cancelled"
    done = ends([*events, *session.events()])
    assert [output(done[other]) for other in others] == [output(alone(other)) for other in others]
