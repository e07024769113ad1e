"""The server's side without a network: what is answered at once, what waits, what is refused, and for how long."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from dataclasses import replace

import pytest

from spectune.errors import RequestError
from spectune.planner.edge.setting import BatchRule
from spectune.runtime.batch.sequence import Request
from spectune.runtime.edge import verification_queue as edge_desk
from spectune.runtime.edge import verifier as edge_verifier
from spectune.runtime.edge.messages import (
    MOST_NAME,
    VERSION,
    Answer,
    Close,
    Draft,
    FromServer,
    Hello,
    Open,
    Refused,
    Welcome,
    from_device,
    open_of,
)
from spectune.runtime.edge.verification_queue import MOST_OPENING, VerificationQueue
from spectune.runtime.edge.verifier import Asked, EdgeVerifier
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import random_requests, run
from ...support.edge_links import Clock, desk_of
from ...support.tiny_models import tiny_llama

TARGET = LeanModel(tiny_llama(layers=2, seed=0))
REQUEST = Request(prompt=(1, 2, 3), max_new_tokens=12)
GATHER = BatchRule(size=3, wait_ms=50.0)


def own_text(request: Request) -> tuple[int, ...]:
    """Return prompt and answer, as the target says it alone."""
    (answer,) = run(TARGET, [request], slots=1).outputs
    return *request.prompt, *answer


def told(desk: VerificationQueue, message: Open | Draft | Close) -> list[FromServer]:
    """Return what a desk answers, at once or later."""
    answers: list[FromServer] = []
    desk.hear(message, answers.append)
    return answers


def opened(desk: VerificationQueue, name: str = "a", request: Request = REQUEST) -> Answer:
    answers = told(desk, open_of(name, request))
    desk.work()
    (answer,) = answers
    assert isinstance(answer, Answer)
    return answer


def refusal(answers: list[FromServer]) -> Refused:
    (answer,) = answers
    assert isinstance(answer, Refused)
    return answer


def test_a_prompt_is_answered_by_the_target_s_first_token() -> None:
    text = own_text(REQUEST)
    assert opened(desk_of(TARGET)) == Answer(session="a", base=3, tokens=text[3:4], is_finished=False)


def test_a_draft_is_answered_by_what_stands_of_it_and_one_token_more() -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    opened(desk)
    wrong = (text[6] + 1) % 24
    answers = told(desk, Draft(session="a", base=4, tokens=(*text[4:6], wrong, 7)))
    assert not answers and desk.due_in_s() == 0.0
    desk.work()
    assert answers == [Answer(session="a", base=4, tokens=text[4:7], is_finished=False)]
    assert (desk.counters.drafted, desk.counters.accepted, desk.counters.emitted) == (4, 2, 4)


def test_a_draft_behind_a_place_that_the_text_has_passed_costs_no_forward() -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    opened(desk)
    told(desk, Draft(session="a", base=4, tokens=text[4:7]))
    desk.work()
    assert told(desk, Draft(session="a", base=4, tokens=(9,))) == [
        Answer(session="a", base=4, tokens=text[4:8], is_finished=False)
    ]
    assert desk.due_in_s() is None and desk.counters.rounds == 1


def test_of_two_drafts_of_one_text_the_newer_is_verified_and_answered() -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    opened(desk)
    old = told(desk, Draft(session="a", base=4, tokens=text[4:5]))
    new = told(desk, Draft(session="a", base=4, tokens=text[4:8]))
    desk.work()
    assert not old and new == [Answer(session="a", base=4, tokens=text[4:9], is_finished=False)]


def test_the_same_prompt_again_is_answered_with_all_there_is_and_another_by_the_name_is_refused() -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    opened(desk)
    told(desk, Draft(session="a", base=4, tokens=text[4:6]))
    desk.work()
    assert told(desk, open_of("a", REQUEST)) == [Answer(session="a", base=3, tokens=text[3:7], is_finished=False)]
    assert "another text" in refusal(told(desk, open_of("a", replace(REQUEST, seed=5)))).reason


def test_a_text_that_has_ended_is_remembered_and_gives_its_place_away() -> None:
    desk = desk_of(TARGET, slots=1)
    short = replace(REQUEST, max_new_tokens=2)
    opened(desk, "a", short)
    told(desk, Draft(session="a", base=4, tokens=()))
    desk.work()
    assert told(desk, Draft(session="a", base=4, tokens=())) == [
        Answer(session="a", base=4, tokens=own_text(short)[4:], is_finished=True)
    ]
    assert opened(desk, "b").base == 3


def test_no_more_ended_texts_are_remembered_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_desk, "MOST_REMEMBERED", 2)
    desk = desk_of(TARGET, slots=1)
    for name in "abc":
        opened(desk, name, replace(REQUEST, max_new_tokens=1))
    draft = Draft(session="a", base=3, tokens=())
    assert refusal(told(desk, draft)).is_unknown
    assert isinstance(told(desk, replace(draft, session="b"))[0], Answer)


@pytest.mark.parametrize(
    ("draft", "reason", "is_unknown"),
    [
        (Draft(session="b", base=4, tokens=()), "not known", True),
        (Draft(session="a", base=9, tokens=()), "not known", True),  # the server has lost what the device knows
        (Draft(session="a", base=4, tokens=(1,) * 9), "at most 8 tokens", False),
        (Draft(session="a", base=4, tokens=(24,)), "does not know", False),
        (Draft(session="a", base=4, tokens=(-1,)), "does not know", False),
    ],
)
def test_a_draft_that_cannot_be_verified_is_refused(draft: Draft, reason: str, is_unknown: bool) -> None:
    desk = desk_of(TARGET)
    opened(desk)
    found = refusal(told(desk, draft))
    assert reason in found.reason and found.is_unknown is is_unknown
    assert desk.due_in_s() is None


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(prompt=(1,), max_new_tokens=60), "there is room for 60"),
        (Request(prompt=(99,), max_new_tokens=5), "does not know"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_and_takes_no_place(request_: Request, reason: str) -> None:
    desk = desk_of(TARGET, slots=1)
    answers = told(desk, open_of("a", request_))
    desk.work()
    assert reason in refusal(answers).reason
    opened(desk, "b")


def test_a_request_that_is_none_is_refused() -> None:
    desk = desk_of(TARGET)
    answers = told(desk, replace(open_of("a", REQUEST), temperature=-1.0))
    desk.work()
    assert "temperature" in refusal(answers).reason


def test_where_all_places_are_taken_a_prompt_is_refused_until_somebody_was_silent_for_long() -> None:
    clock = Clock()
    desk = desk_of(TARGET, slots=2, clock=clock)
    opened(desk, "a")
    clock.now_s = 30.0
    opened(desk, "b")
    answers = told(desk, open_of("c", REQUEST))
    desk.work()
    assert "all 2 places are taken" in refusal(answers).reason and refusal(answers).is_passing
    clock.now_s = 61.0
    opened(desk, "c")
    assert refusal(told(desk, Draft(session="a", base=4, tokens=()))).is_unknown
    assert not told(desk, Draft(session="b", base=4, tokens=()))


def test_who_closes_a_text_gives_its_place_away() -> None:
    desk = desk_of(TARGET, slots=1)
    opened(desk, "a")
    told(desk, Draft(session="a", base=4, tokens=()))
    told(desk, Close(session="a"))
    assert desk.due_in_s() is None
    opened(desk, "b")


def test_drafts_wait_for_others_until_enough_are_there_or_one_has_waited_long_enough() -> None:
    clock = Clock()
    desk = desk_of(TARGET, slots=5, rule=GATHER, clock=clock)
    for name in "abcde":
        opened(desk, name)
    told(desk, Draft(session="a", base=4, tokens=()))
    assert desk.due_in_s() == pytest.approx(0.05)
    clock.now_s = 0.04
    told(desk, Draft(session="b", base=4, tokens=()))
    assert desk.due_in_s() == pytest.approx(0.01)
    told(desk, Draft(session="c", base=4, tokens=()))
    assert desk.due_in_s() == 0.0
    desk.work()
    told(desk, Draft(session="d", base=4, tokens=()))
    clock.now_s = 0.1
    assert desk.due_in_s() == 0.0
    desk.work()
    assert (desk.counters.rounds, desk.counters.drafts) == (2, 4)
    assert desk.counters.waited_s == pytest.approx(0.04 + 0.06)


def test_nobody_waits_for_others_where_all_are_there() -> None:
    desk = desk_of(TARGET, slots=5, rule=GATHER)
    for name in "ab":
        opened(desk, name)
    told(desk, Draft(session="a", base=4, tokens=()))
    assert desk.due_in_s() == pytest.approx(0.05)
    told(desk, Draft(session="b", base=4, tokens=()))
    assert desk.due_in_s() == 0.0


def test_a_draft_that_is_sent_again_has_waited_since_it_first_came() -> None:
    clock = Clock()
    desk = desk_of(TARGET, slots=3, rule=GATHER, clock=clock)
    for name in "ab":
        opened(desk, name)
    told(desk, Draft(session="a", base=4, tokens=()))
    clock.now_s = 0.03
    told(desk, Draft(session="a", base=4, tokens=(5,)))
    assert desk.due_in_s() == pytest.approx(0.02)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_verified_together_in_any_company_are_the_target_s_own(temperature: float) -> None:
    """Prompts of many lengths join and leave, drafts are right, wrong, long and empty, and come in any order."""
    requests = random_requests(9, tokens=14, temperature=temperature)
    expected = [own_text(request) for request in requests]
    desk, dice = desk_of(TARGET, slots=4), random.Random(3)
    known: dict[int, int] = {}
    waiting = list(range(len(requests)))
    texts: dict[int, list[int]] = {place: list(request.prompt) for place, request in enumerate(requests)}

    def take(place: int, answers: Many[FromServer]) -> None:
        for answer in answers:
            assert isinstance(answer, Answer)
            texts[place] = [*texts[place][: answer.base], *answer.tokens]
            known.pop(place, None)
            if not answer.is_finished:
                known[place] = len(texts[place])

    while waiting or known:
        while waiting and len(known) < 4:
            place = waiting.pop(0)
            answers = told(desk, open_of(str(place), requests[place]))
            desk.work()
            take(place, answers)
        asked = dice.sample(sorted(known), dice.randint(1, len(known))) if known else []
        heard = []
        for place in asked:
            right = expected[place][known[place] :][: dice.randint(0, 8)]
            drafted = [token if dice.random() < 0.8 else (token + 1) % 24 for token in right]
            heard.append((place, told(desk, Draft(session=str(place), base=known[place], tokens=tuple(drafted)))))
        desk.work()
        for place, answers in heard:
            take(place, answers)
    assert [tuple(texts[place]) for place in range(len(requests))] == expected
    assert desk.counters.drafts > 1.5 * desk.counters.rounds


def moves_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that copies from slot to slot of any cache are told in."""
    moves, move = list[tuple[int, int]](), KeyValueCache.move_slot

    def moving(cache: KeyValueCache, source: int, target: int, tokens: int) -> None:
        moves.append((source, target))
        move(cache, source, target, tokens)

    monkeypatch.setattr(KeyValueCache, "move_slot", moving)
    return moves


def test_texts_that_lie_in_front_stay_there_in_whichever_order_their_drafts_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, text, moves = desk_of(TARGET), own_text(REQUEST), moves_of(monkeypatch)
    for name in "abc":
        opened(desk, name)
    for base, order in enumerate(("ba", "ab", "cab"), start=4):
        answers = [told(desk, Draft(session=name, base=base - (name == "c") * 2, tokens=())) for name in order]
        desk.work()
        assert all(isinstance(one, Answer) and one.tokens[0] == text[one.base] for (one,) in answers)
    assert not moves
    told(desk, Draft(session="c", base=5, tokens=()))
    desk.work()
    assert len(moves) == 3  # by the spare slot
    told(desk, Close(session="a"))
    told(desk, Draft(session="b", base=7, tokens=()))
    desk.work()
    assert len(moves) == 6


def test_a_text_is_moved_into_an_empty_slot_by_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, moves = desk_of(TARGET), moves_of(monkeypatch)
    for name in "abc":
        opened(desk, name)
    told(desk, Close(session="b"))
    for name in "ac":
        told(desk, Draft(session=name, base=4, tokens=()))
    desk.work()
    assert moves == [(2, 1)]


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_long_prompt_is_read_in_pieces_between_which_drafts_are_verified(
    is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the slot before the other text's is given away, what is half read is moved by its drafts."""
    monkeypatch.setattr(edge_verifier, "PREFILL_TOKENS", 4)
    desk, text, long = desk_of(TARGET), own_text(REQUEST), Request(prompt=tuple(range(1, 19)), max_new_tokens=6)
    for name in "xa" if is_moved else "a":
        opened(desk, name)
    if is_moved:
        told(desk, Close(session="x"))
    moves, reading = moves_of(monkeypatch), told(desk, open_of("long", long))
    for base in range(4, 9):
        assert not reading
        desk.work()
        heard = told(desk, Draft(session="a", base=base, tokens=()))
        desk.work()
        assert heard == [Answer(session="a", base=base, tokens=text[base : base + 1], is_finished=False)]
    whole = own_text(long)
    assert reading == [Answer(session="long", base=18, tokens=whole[18:19], is_finished=False)]
    assert bool(moves) is is_moved and desk.counters.sessions == (3 if is_moved else 2)
    answers = told(desk, Draft(session="long", base=19, tokens=whole[19:22]))
    desk.work()
    assert answers == [Answer(session="long", base=19, tokens=whole[19:23], is_finished=False)]


def test_a_prompt_that_is_closed_or_cannot_be_read_gives_its_place_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_verifier, "PREFILL_TOKENS", 2)
    desk = desk_of(TARGET, slots=1)
    told(desk, open_of("a", REQUEST))
    desk.work()
    told(desk, Close(session="a"))
    answers = told(desk, open_of("b", REQUEST))
    desk.work()
    with monkeypatch.context() as broken:
        broken.setattr(edge_verifier, "read_on", lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
        desk.work()
    assert "no memory" in refusal(answers).reason and desk.due_in_s() is None
    monkeypatch.setattr(edge_verifier, "PREFILL_TOKENS", 4)
    assert opened(desk, "c").base == 3


def test_a_prompt_that_is_asked_for_again_while_it_is_read_is_answered_the_last_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_verifier, "PREFILL_TOKENS", 2)
    desk = desk_of(TARGET)
    first = told(desk, open_of("a", REQUEST))
    desk.work()
    again, other = told(desk, open_of("a", REQUEST)), told(desk, open_of("a", replace(REQUEST, seed=5)))
    desk.work()
    assert not first and isinstance(again[0], Answer) and "another text" in refusal(other).reason


def test_a_verification_that_fails_is_refused_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    opened(desk)
    draft = Draft(session="a", base=4, tokens=text[4:6])
    with monkeypatch.context() as broken:
        broken.setattr(EdgeVerifier, "verify", lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
        answers = told(desk, draft)
        desk.work()
    found = refusal(answers)
    assert "no memory" in found.reason and found.is_passing and not found.is_unknown
    answers = told(desk, draft)
    desk.work()
    assert answers == [Answer(session="a", base=4, tokens=text[4:7], is_finished=False)]


def test_of_a_batch_that_fails_only_the_draft_that_is_the_cause_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, text = desk_of(TARGET), own_text(REQUEST)
    for name in "abc":
        opened(desk, name)
    verify = EdgeVerifier.verify

    def fails(verifier: EdgeVerifier, asked: Many[Asked]) -> None:
        if any(len(drafted) == 3 for _, drafted in asked):
            raise RuntimeError("it is cursed")
        verify(verifier, asked)

    monkeypatch.setattr(EdgeVerifier, "verify", fails)
    sound = [told(desk, Draft(session=name, base=4, tokens=text[4:6])) for name in "ac"]
    cursed = told(desk, Draft(session="b", base=4, tokens=text[4:7]))
    desk.work()
    assert [len(answers) for answers in sound] == [1, 1] and all(isinstance(each[0], Answer) for each in sound)
    assert "it is cursed" in refusal(cursed).reason and desk.counters.failed == 1


def test_drafts_that_are_due_are_verified_between_two_prompts() -> None:
    desk = desk_of(TARGET, slots=8)
    opened(desk, "a")
    for name in "bcd":
        told(desk, open_of(name, REQUEST))
    answers = told(desk, Draft(session="a", base=4, tokens=()))
    desk.work()
    desk.work()
    assert len(answers) == 1 and desk.counters.sessions in (1, 2)


def test_no_more_prompts_wait_than_there_may() -> None:
    desk = desk_of(TARGET)
    for number in range(MOST_OPENING):
        assert not told(desk, open_of(str(number), REQUEST))
    found = refusal(told(desk, open_of("one more", REQUEST)))
    assert found.is_passing and "wait to be read" in found.reason


def test_a_device_that_was_silent_for_long_is_not_waited_for() -> None:
    clock = Clock()
    desk = desk_of(TARGET, rule=GATHER, clock=clock)
    opened(desk, "dead")
    clock.now_s = 10.0
    opened(desk, "a")
    told(desk, Draft(session="a", base=4, tokens=()))
    assert desk.due_in_s() == 0.0


def test_a_device_of_another_version_is_refused_and_others_are_told_how_to_draft() -> None:
    desk = desk_of(TARGET)
    assert isinstance(desk.greeted(Hello(drafter="x", draft_ms=2.0, rtt_ms=1.0)), Welcome)
    found = desk.greeted(Hello(drafter="x", draft_ms=2.0, rtt_ms=1.0, version=VERSION + 1))
    assert isinstance(found, Refused) and "version" in found.reason


def test_a_name_that_is_too_long_is_no_message() -> None:
    with pytest.raises(RequestError, match=f"1 to {MOST_NAME} characters"):
        Close(session="a" * (MOST_NAME + 1))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"kind": "draft", "session": "a", "base": -1, "tokens": []}', "follows at least one token"),
        (b'{"kind": "draft", "session": "a", "tokens": []}', "base: "),
        (b'{"kind": "close", "session": ""}', "1 to 64 characters"),
        (b'{"kind": "pong", "number": 1}', "its kind is none of hello, ping, open, draft, close"),
        (b"[" * 100_000, "cannot be read"),
        (b"{", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_message_is_told(line: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        from_device(line)
