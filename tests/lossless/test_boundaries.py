"""T7, T8: stops and limits inside a draft, empty drafts, no room; and every token and forward is counted once."""

from __future__ import annotations

from functools import lru_cache

import pytest

from spectune.errors import RequestError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import (
    CAPACITY,
    PLAINLY,
    POLICIES,
    RankedDrafter,
    RecordingDrafter,
    drafter_for,
    drafting,
    random_requests,
    run,
)
from ..support.tiny_models import perturbed, tiny_gpt2, tiny_llama, with_places

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.06))
PROMPT = (5, 1, 9)


@lru_cache
def truth(tokens: int = 40) -> tuple[int, ...]:
    """Return the target's own continuation of the prompt; nothing stops it."""
    return run(TARGET, [Request(prompt=PROMPT, max_new_tokens=tokens)], PLAINLY).outputs[0]


def oracle() -> RankedDrafter:
    """Draft what the target says next."""
    return RankedDrafter(lambda s, depth: [truth()[len(s.emitted) + depth - 1]])


CHAIN = always(StepConfig(policy=ChainPolicy(length=6), drafter="it"))


def first_new(place: int) -> int:
    """Return the first place at or behind `place` whose token has not occurred in the truth before."""
    return next(p for p in range(place, 40) if truth()[p] not in truth()[:p])


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_nothing_follows_a_stop_token_inside_a_draft(place: int) -> None:
    place = first_new(place)
    request = Request(prompt=PROMPT, max_new_tokens=30, stop=frozenset([truth()[place]]))
    assert run(TARGET, [request], CHAIN, {"it": oracle()}).outputs == [truth()[: place + 1]]


@pytest.mark.parametrize("kind", POLICIES)
def test_stop_tokens_end_a_text_where_plain_decoding_ends_it(kind: str) -> None:
    requests = [
        Request(prompt=r.prompt, max_new_tokens=40, temperature=0.8, seed=r.seed, stop=frozenset([3, 14]))
        for r in random_requests(11, tokens=40)
    ]
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
    done = run(TARGET, requests, schedule, drafters).outputs
    assert done == run(TARGET, requests).outputs
    assert sum(text[-1] in (3, 14) and not {3, 14} & set(text[:-1]) for text in done) > 5


def test_a_stop_token_in_the_prompt_stops_nothing() -> None:
    absent = next(token for token in PROMPT if token not in truth()[:5])
    request = Request(prompt=PROMPT, max_new_tokens=5, stop=frozenset([absent]))
    assert run(TARGET, [request], CHAIN, {"it": oracle()}).outputs == [truth()[:5]]


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_inside_a_draft_cuts_there(limit: int) -> None:
    done = run(TARGET, [Request(prompt=PROMPT, max_new_tokens=limit)], CHAIN, {"it": oracle()})
    assert done.outputs == [truth()[:limit]]


def test_a_limit_of_one_token_needs_no_round() -> None:
    done = run(TARGET, [Request(prompt=PROMPT, max_new_tokens=1)], CHAIN, {"it": oracle()})
    assert done.outputs == [truth()[:1]] and done.rounds == []


@pytest.mark.parametrize("kind", POLICIES)
def test_a_prompt_of_one_token_decodes(kind: str) -> None:
    requests = [Request(prompt=(token,), max_new_tokens=12) for token in range(5)]
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
    assert run(TARGET, requests, schedule, drafters).outputs == run(TARGET, requests).outputs


def test_a_lookup_that_finds_nothing_is_a_plain_round() -> None:
    schedule = always(StepConfig(policy=LookupPolicy(length=5, max_ngram=9, min_ngram=9), drafter="it"))
    done = run(TARGET, [Request(prompt=PROMPT, max_new_tokens=8)], schedule, {"it": LookupDrafter()})
    assert done.outputs == [truth()[:8]]
    assert [(one.kept, one.verify_tokens) for one in done.rounds] == [([1], 1)] * 7


def test_lookups_of_one_batch_may_find_texts_of_different_length() -> None:
    repeated = Request(prompt=(1, 2, 3, 4, 5, 6, 1, 2), max_new_tokens=12)
    schedule, drafters = drafting("lookup", LookupDrafter())
    requests = [repeated, Request(prompt=(7,), max_new_tokens=12), Request(prompt=(8, 8), max_new_tokens=12)]
    assert run(TARGET, requests, schedule, drafters).outputs == run(TARGET, requests).outputs


def test_a_draft_longer_than_the_room_left_is_refused_before_it_overwrites_a_neighbour() -> None:
    requests = [Request(prompt=PROMPT, max_new_tokens=9)] * 2
    with pytest.raises(RequestError, match="room for 17 tokens and the cache holds 12"):
        run(TARGET, requests, CHAIN, {"it": oracle()}, capacity=12)


def test_a_drafter_without_room_for_its_nodes_says_so() -> None:
    requests = [Request(prompt=PROMPT, max_new_tokens=9)] * 2
    drafter = ModelDrafter(DRAFTER, slots=2, capacity=8)
    found = run(TARGET, requests, CHAIN, {"it": drafter}, slots=2, may_fail=True)
    reasons = [fault.reason for done in found.rounds for fault in done.faults]
    assert found.outputs == run(TARGET, requests).outputs
    assert any("room for 9 tokens and the cache holds 8" in reason for reason in reasons)


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RequestError, match="room for 23 tokens and the cache holds 20"):
        run(TARGET, [Request(prompt=PROMPT, max_new_tokens=20)], capacity=20)


def test_drafts_may_reach_beyond_a_table_of_positions_that_ends() -> None:
    gpt2 = tiny_gpt2(seed=0, positions=16)
    target, drafter = GenericModel(gpt2), GenericModel(perturbed(gpt2, 0.05))
    requests = [Request(prompt=PROMPT, max_new_tokens=13), Request(prompt=PROMPT[:1], max_new_tokens=15)]
    drafters = {"it": ModelDrafter(drafter, slots=3, capacity=40)}
    assert run(target, requests, CHAIN, drafters).outputs == run(target, requests).outputs


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", ["chain", "eagle2"])
def test_a_drafter_with_fewer_places_than_its_target_costs_drafts_alone(kind: str, on_device: bool) -> None:
    model = with_places(perturbed(LLAMA, 0.06), 16)
    requests = [Request(prompt=PROMPT, max_new_tokens=120), Request(prompt=(7,) * 110, max_new_tokens=9)]
    schedule, drafters = drafting(kind, ModelDrafter(model, slots=2, capacity=200, on_device=on_device))
    done = run(TARGET, requests, schedule, drafters, slots=2, capacity=200)
    assert done.outputs == run(TARGET, requests, capacity=200).outputs
    assert not any(one.faults for one in done.rounds)


@pytest.mark.parametrize("length", [6, 100])
def test_drafts_may_reach_beyond_the_places_of_a_lean_target(length: int) -> None:
    target = with_places(LLAMA, 40)
    requests = [Request(prompt=PROMPT, max_new_tokens=37), Request(prompt=PROMPT[:1], max_new_tokens=39)]
    chain = always(StepConfig(policy=ChainPolicy(length=length), drafter="it"))
    drafters = {"it": ModelDrafter(DRAFTER, slots=2, capacity=300)}
    done = run(target, requests, chain, drafters, slots=2, capacity=300)
    assert done.outputs == run(target, requests, capacity=300).outputs
    assert not any(one.faults for one in done.rounds)


def test_a_sequence_that_lags_far_behind_in_a_drafter_does_not_overwrite_its_neighbours() -> None:
    """The first sequence decodes plainly for long, then a long prompt joins and both draft."""
    requests = [
        Request(prompt=(1, 2), max_new_tokens=60),
        Request(prompt=(3,), max_new_tokens=40),
        Request(prompt=tuple(range(20)) * 3, max_new_tokens=8),
    ]

    def schedule(batch: int, context: int) -> StepConfig:
        return StepConfig(policy=POLICIES["chain"], drafter="it") if context >= 60 else PLAIN

    drafters = {"it": ModelDrafter(DRAFTER, slots=2, capacity=74)}
    done = run(TARGET, requests, schedule, drafters, slots=2, capacity=80)
    assert done.outputs == run(TARGET, requests).outputs
    assert max(one.uncached for one in done.rounds) > 35


@pytest.mark.parametrize("kind", POLICIES)
def test_every_round_keeps_the_longest_drafted_path_of_the_truth_and_one_token(kind: str) -> None:
    requests = random_requests(11, tokens=16, temperature=0.8)
    drafter = RecordingDrafter(drafter_for(kind, DRAFTER, 3))
    schedule, drafters = drafting(kind, drafter)
    done = run(TARGET, requests, schedule, drafters)
    for one, drafts in zip(done.rounds, drafter.rounds, strict=True):
        for kept, (index, emitted, paths) in zip(one.kept, drafts, strict=True):
            rest = done.outputs[index][emitted:]
            accepted = next(n for n in range(len(rest), -1, -1) if rest[:n] in paths)
            assert kept == min(accepted + 1, len(rest))


@pytest.mark.parametrize("kind", POLICIES)
def test_kept_tokens_and_first_tokens_are_all_tokens(kind: str) -> None:
    requests = random_requests(11, tokens=16, temperature=0.8)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
    done = run(TARGET, requests, schedule, drafters)
    emitted = sum(len(text) for text in done.outputs)
    assert sum(sum(one.kept) for one in done.rounds) == emitted - len(requests)


@pytest.mark.parametrize("kind", POLICIES)
def test_the_target_runs_once_a_round(kind: str) -> None:
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
    done = run(TARGET, random_requests(11, tokens=16), schedule, drafters)
    assert done.target_forwards == len(done.rounds)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_round_runs_the_drafter_as_often_as_its_widths_say(kind: str) -> None:
    drafter = RecordingDrafter(drafter_for(kind, DRAFTER, 3))
    schedule, drafters = drafting(kind, drafter)
    done = run(TARGET, random_requests(11, tokens=16), schedule, drafters)
    assert drafter.round_forwards == [len(one.widths) for one in done.rounds]


@pytest.mark.parametrize("kind", ["chain", "static", "eagle2"])
def test_a_round_runs_the_drafter_as_often_as_its_policy_says(kind: str) -> None:
    drafter = RecordingDrafter(drafter_for(kind, DRAFTER, 3))
    schedule, drafters = drafting(kind, drafter)
    run(TARGET, random_requests(11, tokens=16), schedule, drafters)
    assert set(drafter.round_forwards) == {POLICIES[kind].draft_forwards}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_round_reports_what_the_drafter_had_to_read(kind: str) -> None:
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 1))
    done = run(TARGET, [Request(prompt=PROMPT, max_new_tokens=20)], schedule, drafters, slots=1)
    before = [1, *(one.kept[0] for one in done.rounds[:-1])]
    assert [one.uncached for one in done.rounds] == ([0] * len(before) if kind == "lookup" else before)


def test_no_verify_feeds_more_than_its_policy_allows() -> None:
    for kind, policy in POLICIES.items():
        schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
        done = run(TARGET, random_requests(5, tokens=12), schedule, drafters, capacity=CAPACITY)
        assert max(one.verify_tokens for one in done.rounds) <= policy.max_verify_tokens
