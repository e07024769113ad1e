"""What a device and a server decode together is the target's own, whatever happens to their messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from spectune.errors import RequestError, ServerAwayError
from spectune.planner.edge.costs import edge_rounds
from spectune.planner.edge.setting import DeviceDrafting
from spectune.planner.records.recording import recording_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.runtime.batch.sequence import Request
from spectune.runtime.edge import patience as edge_patience
from spectune.runtime.edge.device import EdgeRun, RemoteTarget
from spectune.runtime.edge.link import Link
from spectune.runtime.edge.messages import Close, Ping
from spectune.runtime.edge.patience import MOST_SILENT, RetryPolicy
from spectune.runtime.edge.verifier import Asked, EdgeVerifier
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ...support.decoded_runs import random_requests, run
from ...support.edge_links import BusyLink, DeafLink, FaultyLink, LocalLink, SilentLink, desk_of, forgetful
from ...support.pairwise import some_of
from ...support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.08))
MOST = 8  # tokens of a draft
WAYS = [
    DeviceDrafting(chain=ConfidentChainPolicy(length=length, confidence=confidence), ahead=ahead)
    for length, confidence, ahead in [(1, 0.0, 0), (4, 0.0, 0), (4, 0.5, 0), (3, 0.0, 5), (6, 0.4, 2), (8, 0.9, 16)]
]
PATIENT = RetryPolicy(timeout_s=9.0)  # nothing here takes time: what is not there at once never comes
HASTY = RetryPolicy(timeout_s=0.02)  # for refusals, which are borne for a time


@cache
def plain(temperature: float, penalty: float = 1.0) -> list[tuple[int, ...]]:
    return run(TARGET, requests(temperature, penalty), slots=1).outputs


def requests(temperature: float, penalty: float = 1.0) -> list[Request]:
    asked = random_requests(6, tokens=20, temperature=temperature)
    return [replace(one, repetition_penalty=penalty) for one in asked]


def device(link: Link, way: DeviceDrafting = WAYS[3], patience: RetryPolicy = PATIENT) -> RemoteTarget:
    return RemoteTarget(DRAFTER, link, way, most_drafted=MOST, patience=patience)


def decoded(link: Link, temperature: float, way: DeviceDrafting = WAYS[3], penalty: float = 1.0) -> list[EdgeRun]:
    return [device(link, way).generate(one) for one in requests(temperature, penalty)]


@pytest.mark.thinned
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("temperature", "penalty"), [(0.0, 1.0), (0.8, 1.0), (0.8, 1.3)])
def test_what_a_device_decodes_is_the_target_s_own(way: DeviceDrafting, temperature: float, penalty: float) -> None:
    runs = decoded(LocalLink(desk_of(TARGET)), temperature, way, penalty)
    assert [tuple(one.tokens) for one in runs] == plain(temperature, penalty)
    assert all(not one.own and not one.asked_again for one in runs)
    assert sum(one.accepted for one in runs) > 0


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids=str)
def test_a_draft_that_is_refused_for_now_is_sent_again_and_no_answer_to_it_is_waited_for(
    way: DeviceDrafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_patience, "PAUSE_S", 0.0)
    link = BusyLink(desk_of(TARGET))
    runs = decoded(link, 0.0, way)
    assert [tuple(one.tokens) for one in runs] == plain(0.0)
    assert sum(one.asked_again for one in runs) == link.refused > 0
    assert link.vain == 0


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids=str)
def test_refusals_for_now_are_borne_for_as_long_as_silences_however_many_they_are(
    way: DeviceDrafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_patience, "PAUSE_S", 0.0)
    link = BusyLink(desk_of(TARGET), times=3 * MOST_SILENT)
    assert tuple(device(link, way).generate(requests(0.0)[0]).tokens) == plain(0.0)[0]
    assert link.refused >= 3 * MOST_SILENT and link.vain == 0


def test_refusals_for_now_that_do_not_end_are_told_after_as_long_as_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_patience, "PAUSE_S", 0.001)
    link = BusyLink(desk_of(TARGET), times=10**9)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"cannot go on since .*: busy"):
        device(link, patience=HASTY).generate(requests(0.0)[0])
    assert time.monotonic() - start >= MOST_SILENT * HASTY.timeout_s


@pytest.mark.thinned
@pytest.mark.parametrize("way", [WAYS[1], WAYS[3], WAYS[5]], ids=str)
@pytest.mark.parametrize("seed", some_of(range(12), 3))
def test_lost_doubled_and_late_messages_change_nothing(way: DeviceDrafting, seed: int) -> None:
    temperature = 0.8 * (seed % 2)
    runs = decoded(FaultyLink(desk_of(TARGET), seed), temperature, way)
    assert [tuple(one.tokens) for one in runs] == plain(temperature)
    assert sum(one.asked_again for one in runs) > 0 and not any(one.own for one in runs)


@pytest.mark.parametrize("after", [2, 4, 7])
def test_a_server_that_begins_anew_takes_up_the_text(after: int) -> None:
    for asked, expected in zip(requests(0.8), plain(0.8), strict=True):
        link = forgetful(LocalLink(desk_of(TARGET)), [desk_of(TARGET)], after)
        assert tuple(device(link).generate(asked).tokens) == expected


def test_a_stop_token_ends_a_text_in_the_middle_of_a_draft() -> None:
    asked, whole = requests(0.0)[0], plain(0.0)[0]
    stopping = replace(asked, stop=frozenset({whole[9]}))
    found = device(LocalLink(desk_of(TARGET))).generate(stopping)
    assert tuple(found.tokens) == whole[: whole.index(whole[9]) + 1]


def test_without_a_fallback_a_silent_server_is_told() -> None:
    link = SilentLink(desk_of(TARGET), range(3, 10**6))
    with pytest.raises(ServerAwayError, match="silent"):
        device(link).generate(requests(0.0)[0])


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids=str)
def test_a_server_that_answers_pings_alone_is_waited_for_and_no_fallback_takes_its_place(way: DeviceDrafting) -> None:
    link = DeafLink(desk_of(TARGET), 3 * MOST_SILENT)
    found = device(link, way, replace(PATIENT, fallback=4)).generate(requests(0.0)[0])
    assert tuple(found.tokens) == plain(0.0)[0]
    assert found.asked_again == 3 * MOST_SILENT and not found.own


def test_a_server_that_answers_pings_alone_for_all_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_patience, "MOST_BUSY_S", 0.0)
    with pytest.raises(RequestError, match=r"cannot go on since .*: it answers pings and nothing else"):
        device(DeafLink(desk_of(TARGET), 10**9)).generate(requests(0.0)[0])


def test_a_server_that_is_not_busy_is_sent_no_pings() -> None:
    link = LocalLink(desk_of(TARGET))
    decoded(link, 0.0)
    assert not any(isinstance(message, Ping) for message in link.sent)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_fallback_is_told_apart_and_the_target_takes_up_the_text_behind_it(is_cut: bool) -> None:
    asked = requests(0.0)[0]
    link = SilentLink(desk_of(TARGET), range(3, 12), is_cut=is_cut)
    found = device(link, patience=replace(PATIENT, fallback=4)).generate(asked)
    assert len(found.own) == 4 and len(found.tokens) == asked.max_new_tokens
    before, behind = found.own[0], found.own[-1] + 1
    assert tuple(found.tokens[:before]) == plain(0.0)[0][:before]
    prompt = (*asked.prompt, *found.tokens[:behind])
    (rest,) = run(TARGET, [replace(asked, prompt=prompt, max_new_tokens=asked.max_new_tokens - behind)]).outputs
    assert tuple(found.tokens[behind:]) == rest


def test_a_fallback_leaves_no_place_of_the_server_taken() -> None:
    """With one place alone, what was left behind has to go before the text is opened anew."""
    asked = requests(0.0)[0]
    link = SilentLink(desk_of(TARGET, slots=1), range(3, 12))
    found = device(link, patience=replace(PATIENT, fallback=4)).generate(asked)
    assert len(found.own) == 4 and len(found.tokens) == asked.max_new_tokens
    assert sum(isinstance(message, Close) for message in link.sent) >= 2


@pytest.mark.parametrize(("is_cut", "closes"), [(True, 1), (False, MOST_SILENT + 1)])
def test_sessions_left_behind_are_closed_while_messages_can_be_sent_and_no_more_than_some(
    is_cut: bool, closes: int
) -> None:
    link, before = SilentLink(desk_of(TARGET), range(3, 10**6), is_cut=is_cut), 0
    for _ in device(link, patience=replace(PATIENT, fallback=1)).stream(requests(0.0)[0]):
        before = len(link.sent)
    assert len(link.sent) - before == closes


@pytest.mark.parametrize("failures", [1, 5])
def test_a_verification_that_fails_for_a_while_is_asked_for_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, left = EdgeVerifier.verify, [failures]

    def fails(verifier: EdgeVerifier, asked: Sequence[Asked]) -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError("no memory right now")
        verify(verifier, asked)

    monkeypatch.setattr(EdgeVerifier, "verify", fails)
    monkeypatch.setattr(edge_patience, "PAUSE_S", 0.0)
    found = device(LocalLink(desk_of(TARGET))).generate(requests(0.0)[0])
    assert tuple(found.tokens) == plain(0.0)[0] and found.asked_again == failures


def test_a_server_that_cannot_go_on_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_patience, "PAUSE_S", 0.0)
    desk = desk_of(TARGET, slots=1)
    other = device(LocalLink(desk)).stream(requests(0.0)[1])
    next(other)  # takes the only place
    with pytest.raises(RequestError, match=r"cannot go on since .* all 1 places are taken"):
        device(LocalLink(desk), patience=HASTY).generate(requests(0.0)[0])
    other.close()
    assert tuple(device(LocalLink(desk)).generate(requests(0.0)[0]).tokens) == plain(0.0)[0]


def test_a_fallback_that_says_a_stop_token_ends_the_text() -> None:
    asked = requests(0.0)[0]
    first = device(SilentLink(desk_of(TARGET), range(3, 10**6)), patience=replace(PATIENT, fallback=30)).generate(asked)
    own = first.tokens[first.own[2]]
    stopping = replace(asked, stop=frozenset({own}))
    found = device(SilentLink(desk_of(TARGET), range(3, 10**6)), patience=replace(PATIENT, fallback=30)).generate(
        stopping
    )
    assert found.tokens == first.tokens[: first.tokens.index(own) + 1]


def test_what_the_server_refuses_is_told() -> None:
    with pytest.raises(RequestError, match=r"the server refuses: .*there is room for 60"):
        device(LocalLink(desk_of(TARGET))).generate(Request(prompt=(1,), max_new_tokens=100))


@cache
def trace(temperature: float) -> AcceptanceTrace:
    texts = [(one, text) for one, text in zip(requests(temperature), plain(temperature), strict=True)]
    recipe = Recipe(children=2, trees=(ChainPolicy(length=10),))
    return AcceptanceTrace(
        target="target",
        drafter="drafter",
        drafter_name="it",
        workload="tiny",
        temperature=temperature,
        seed=0,
        children=2,
        prefix_exact=True,
        prompts=record_prompts(DRAFTER, texts, recipe),
    )


@pytest.mark.thinned
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_device_s_rounds_are_those_that_were_foretold(way: DeviceDrafting, temperature: float) -> None:
    foretold = edge_rounds(way.chain, recording_of(trace(temperature)))
    runs = decoded(LocalLink(desk_of(TARGET)), temperature, way)
    ends = [*foretold.starts[1:].tolist(), len(foretold.kept)]
    for one, start, end in zip(runs, foretold.starts.tolist(), ends, strict=True):
        own = slice(start, end)
        kept, drafted = foretold.kept[own], foretold.drafted[own]
        assert (one.rounds, one.drafted) == (end - start, drafted.sum())
        assert (one.accepted, len(one.tokens)) == ((kept - 1).sum(), 1 + kept.sum())
        assert one.forwards == forwards(kept.tolist(), drafted.tolist(), foretold.goes_on[own].tolist(), way.ahead)


def forwards(kept: list[int], drafted: list[int], goes_on: list[bool], ahead: int) -> int:
    """Return what the drafter runs where every answer waits until all is drafted that may be ahead."""
    count = held = 0
    left = sum(kept)
    for more, sent, is_held in zip(kept, drafted, goes_on, strict=True):
        there = max(held, sent)
        reached = max(min(sent + ahead, left), there)
        count += reached - held
        held, left = max(reached - more, 0) if is_held else 0, left - more
    return count
