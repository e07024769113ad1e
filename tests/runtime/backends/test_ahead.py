"""Rounds that run one ahead of the host emit the same text in the same rounds, and really run ahead."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.backends import device_acceptance as acceptance_module
from spectune.runtime.backends import rounds_ahead as rounds_module
from spectune.runtime.backends.captured_rounds import CapturedRounds, Ends
from spectune.runtime.backends.device_state import Told
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always, draft_room
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import TREE_ATTENTION, CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime
from spectune.runtime.watch.counters import is_timed

from ...support.ahead_runs import KINDS, LLAMA, SKETCH, TARGET, Captured, Watched, eagerly, plainly, setup_of, told
from ...support.decoded_runs import CAPACITY, PADDED, POLICIES, Run, in_slots, random_requests, run
from ...support.fresh_states import worst_difference
from ...support.host_reads import NoHostReads
from ...support.pairwise import crossed
from ...support.tiny_models import perturbed, tiny_llama, tiny_neox, with_places

pytestmark = pytest.mark.lossless


def stopping(requests: Many[Request]) -> list[Request]:
    """Return requests whose texts end where some draft stands, by a token that they emit early."""
    outputs = plainly(requests)
    return [replace(one, stop=frozenset(text[4:5])) for one, text in zip(requests, outputs, strict=True)]


def assert_same(found: Run, expected: Run, requests: Many[Request]) -> None:
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found.rounds) == told(expected.rounds)


@crossed(kind=KINDS, slots=(1, 3), ends=("by their limits", "by stop tokens"))
def test_the_text_and_the_rounds_are_those_of_eager_forwards(kind: str, slots: int, ends: str) -> None:
    requests = random_requests(5, tokens=10)
    if ends == "by stop tokens":
        requests = stopping(requests)
    schedule, captured = always(setup_of(kind, run_tokens=PADDED)), Captured(slots=slots)
    assert_same(captured.run(requests, schedule), eagerly(requests, schedule, slots=slots), requests)
    assert captured.others == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_outgrows_what_is_in_sight_is_recorded_anew(kind: str) -> None:
    requests = [replace(one, max_new_tokens=135) for one in random_requests(2, tokens=1)]
    schedule, captured = always(setup_of(kind)), Captured()
    found = captured.run(requests, schedule)
    assert_same(found, eagerly(requests, schedule), requests)
    assert len(captured.targets.recorded) > len({len(one.kept) for one in found.rounds})


@pytest.mark.parametrize("kind", ["chain", "eagle2"])
def test_rounds_run_ahead_behind_texts_that_go_beyond_the_drafter_s_positions(kind: str) -> None:
    requests, schedule = random_requests(4, tokens=30), always(setup_of(kind))
    captured = Captured(drafter_model=with_places(SKETCH, 16))
    assert captured.run(requests, schedule).outputs == plainly(requests) and captured.others == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_reads_trees_is_recorded_once_for_all_contexts(kind: str) -> None:
    requests = [replace(one, max_new_tokens=135) for one in random_requests(1, tokens=1)]
    schedule, captured = always(setup_of(kind)), Captured(slots=1)
    captured.target.attention = TREE_ATTENTION  # what it says; the model makes a mask of the tree
    assert_same(captured.run(requests, schedule), eagerly(requests, schedule, slots=1), requests)
    assert len(captured.targets.recorded) <= 2  # and rounds by the end of the cache


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_kind_runs_ahead_alike(kind: str) -> None:
    neox = tiny_neox(layers=2, seed=0)
    models = GenericModel(neox), GenericModel(perturbed(neox, 0.1))
    requests, schedule = random_requests(4, tokens=16), always(setup_of(kind))
    found = Captured(target_model=models[0], drafter_model=models[1]).run(requests, schedule)
    expected = eagerly(requests, schedule, target=models[0], model=models[1])
    assert found.outputs == expected.outputs and told(found.rounds) == told(expected.rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_after_every_round_the_caches_are_fresh_prefills(kind: str) -> None:
    captured = Captured()
    verified: list[tuple[int, Tensor]] = []
    drafted: list[tuple[int, Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, one in in_slots(decoder):
            verified.append((one.index, decoder._cache.states[:, slot, : one.context].clone()))
            cached = captured.drafter._cached[slot]  # 0 where it reads when it is asked to draft
            if cached:
                drafted.append((one.index, captured.drafter._cache.states[:, slot, :cached].clone()))

    requests = random_requests(7, tokens=12)
    done = captured.run(requests, always(setup_of(kind)), watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert len(verified) > 20 and worst_difference(LLAMA, texts, verified) < 1e-9
    assert worst_difference(SKETCH, texts, drafted) < 1e-9
    assert captured.others == 0


@pytest.mark.thinned
@pytest.mark.parametrize("is_likely", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_launched_before_the_one_before_it_is_read_or_committed(
    kind: str, is_likely: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the text is likely to end with that one, it is read first, and nobody launches a round in vain."""
    captured, launched, read = Captured(slots=1), list[tuple[int, int]](), list[Told]()
    policy, end = setup_of(kind).policy, 43
    decoder = captured.decoder(always(setup_of(kind)))
    sequence = decoder.admit(Request(prompt=(1, 2, 3), max_new_tokens=end - 3))
    lengths = [len(sequence.tokens)]
    captured.targets.note = lambda: launched.append((len(sequence.tokens), len(read)))
    told_of = CapturedRounds.told

    def noted(rounds: CapturedRounds, *given: Any) -> Told:
        read.append(told_of(rounds, *given))
        return read[-1]

    monkeypatch.setattr(CapturedRounds, "told", noted)
    if is_likely:
        monkeypatch.setattr(Ends, "are_likely", lambda ends, left: True)
    while decoder.running:
        decoder.step()
        lengths.append(len(sequence.tokens))
    rounds, most_kept = len(lengths) - 1, 1 + (0 if kind == "plain" else policy.bounds.depth)
    assert rounds > 8 and [length for length, _ in launched] == [lengths[0], *lengths[: rounds - 1]]  # not committed
    may_go_on = [end - before > most_kept for before in lengths]  # whatever a round keeps, the next one is wanted
    unread = [place - reads for place, (_, reads) in enumerate(launched)]
    assert sum(may_go_on) > 5 and unread[0] == 0 and set(unread) <= {0, 1}
    assert all(ahead == (not is_likely) for ahead, goes_on in zip(unread[1:], may_go_on, strict=False) if goes_on)


def test_plain_rounds_know_when_all_is_said_and_launch_nothing_ahead_of_it() -> None:
    captured = Captured()
    requests = [Request(prompt=(place, 3), max_new_tokens=20) for place in range(3)]
    rounds = captured.run(requests, always(PLAIN)).rounds
    assert captured.targets.replays == len(rounds) == 19


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_launched_ahead_of_a_round_that_may_end_a_text(kind: str) -> None:
    captured = Captured(slots=2)
    decoder = captured.decoder(always(setup_of(kind)))
    for tokens in (2, 40):
        decoder.admit(Request(prompt=(5, tokens % 24), max_new_tokens=tokens))
    done = decoder.step()
    assert len(done.finished) == 1 and captured.targets.replays == 1
    decoder.step()
    assert captured.targets.replays == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_is_cancelled_takes_the_round_in_flight_with_it(kind: str) -> None:
    captured, requests = Captured(), random_requests(4, tokens=24)
    decoder = captured.decoder(always(setup_of(kind)))
    sequences = [decoder.admit(request, index) for index, request in enumerate(requests[:3])]
    for _ in range(3):
        decoder.step()
    decoder.cancel(sequences[0])
    decoder.step()
    sequences.append(decoder.admit(requests[3], 3))
    while decoder.running:
        assert not decoder.step().faults
    texts = plainly(requests)
    cancelled = tuple(sequences[0].emitted)
    assert cancelled == texts[0][: len(cancelled)] and len(cancelled) < len(texts[0])
    assert [tuple(one.emitted) for one in sequences[1:]] == texts[1:]


def test_a_request_that_ends_at_once_disturbs_nothing() -> None:
    captured = Captured(slots=2)
    decoder = captured.decoder(always(setup_of("chain")))
    sequence = decoder.admit(Request(prompt=(1, 2, 3), max_new_tokens=30))
    for _ in range(2):
        decoder.step()
    before = captured.targets.replays
    decoder.admit(Request(prompt=(4, 5), max_new_tokens=1), 1)
    decoder.step()
    assert captured.targets.replays == before + 1
    while decoder.running:
        decoder.step()
    assert [tuple(sequence.emitted)] == plainly([sequence.request])


def switching(batch: int, context: int) -> StepConfig:
    """Change policy and drafter with the context, as a plan may; some rounds cannot run ahead."""
    kinds = ("chain", "chain", "eagle2", "plain", "static", "lookup", "hybrid", "talon")
    kind = kinds[context // 4 % len(kinds)]
    if kind == "lookup":
        return StepConfig(policy=POLICIES["lookup"], drafter="text")
    if kind == "hybrid":
        return StepConfig(policy=HybridPolicy(text=SuffixPolicy(length=3), model=ChainPolicy(length=3)), drafter="it")
    return setup_of(kind, run_tokens=PADDED if batch == 2 else ())


def test_setups_may_change_and_rounds_between_need_not_run_ahead() -> None:
    requests = random_requests(7, tokens=40)
    outputs = []
    for captured in (Captured(), None):
        model = Captured().drafter if captured is None else captured.drafter
        drafters: dict[str, Drafter] = {"it": HybridDrafter(model), "text": LookupDrafter()}
        target = Captured().target_model if captured is None else captured.target
        outputs.append(run(target, requests, switching, drafters))
    assert outputs[0].outputs == outputs[1].outputs == plainly(requests)
    assert {one.setup.policy.kind for one in outputs[0].rounds} >= {"chain", "eagle2", "static", "hybrid", "talon"}


def test_a_penalty_of_one_request_holds_rounds_back_and_they_go_on_without_it() -> None:
    requests = random_requests(5, tokens=20)
    requests[1] = replace(requests[1], repetition_penalty=1.4, max_new_tokens=9)
    captured = Captured()
    found = captured.run(requests, always(setup_of("chain")))
    assert found.outputs == plainly(requests)
    assert captured.targets.replays > len(found.rounds) - 9 and captured.others > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_capacity_that_just_suffices_suffices(kind: str) -> None:
    setup, requests = setup_of(kind), random_requests(3, tokens=20)
    longest = max(len(one.prompt) + one.max_new_tokens for one in requests)
    captured = Captured(slots=3, capacity=longest + draft_room([setup], 3))
    expected = eagerly(requests, always(setup), slots=3, capacity=captured.capacity)
    assert_same(captured.run(requests, always(setup)), expected, requests)


@pytest.mark.thinned
@pytest.mark.parametrize("tokens", [18, 19, 20, 21])
@pytest.mark.parametrize("kind", KINDS)
def test_no_round_ahead_writes_behind_the_end_of_a_cache(kind: str, tokens: int) -> None:
    setup, request = setup_of(kind), Request(prompt=(1, 2, 3), max_new_tokens=tokens)
    needed = max(setup.policy.max_verify_tokens, setup.policy.draft_room() + 1, 2)
    capacity = len(request.prompt) + tokens - 2 + needed  # what the last round may need, and not one more
    captured = Captured(slots=1, capacity=capacity, drafter_model=TARGET)  # which goes as far as it may
    assert captured.run([request], always(setup)).outputs == plainly([request])


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_rounds_read_nothing_on_the_host(kind: str) -> None:
    captured = Captured()
    captured.run(random_requests(3, tokens=8), always(setup_of(kind)))
    works = [*captured.targets.recorded, *captured.drafts.recorded]
    assert works
    with NoHostReads(), torch.inference_mode():
        for work in works:
            work.run()


def lengths_of(done: Many[StepOutput]) -> set[int]:
    return {kept for one in done for kept in one.kept}


def nothing_accepted(tokens: Tensor, parents: Tensor, sees: Tensor, best: Tensor) -> Tensor:
    return parents < 0


def test_another_acceptance_on_the_device_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, schedule = random_requests(5, tokens=24), always(setup_of("static"))
    expected = eagerly(requests, schedule)
    assert max(lengths_of(expected.rounds)) > 2
    monkeypatch.setattr(acceptance_module, "accepted_nodes", nothing_accepted)
    captured = Captured()
    found = captured.run(requests, schedule)
    assert found.outputs != expected.outputs  # keys of accepted nodes lie where they were
    assert captured.targets.replays > 1.5 * len(found.rounds)


def text_of_a_newcomer(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """Decode some rounds of one prompt, and another in its place that is as long as the first text is by then."""
    captured = Captured(slots=1)
    decoder = captured.decoder(always(PLAIN))
    first = decoder.admit(Request(prompt=before, max_new_tokens=30))
    while first.context < len(after):
        decoder.step()
    decoder.cancel(first)
    second = decoder.admit(Request(prompt=after, max_new_tokens=12))
    while decoder.running:
        decoder.step()
    return tuple(second.emitted)


def test_a_newcomer_as_long_as_who_left_is_not_taken_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (1, 2, 3), (9, 8, 7, 6, 5, 4, 3, 2)
    (text,) = plainly([Request(prompt=after, max_new_tokens=12)])
    assert text_of_a_newcomer(before, after) == text
    monkeypatch.setattr(rounds_module._Bet, "holds", lambda bet, batch, setup: len(batch) == len(bet.batch))
    assert text_of_a_newcomer(before, after) != text


def test_times_of_rounds_ahead_lie_within_their_steps() -> None:
    done = Captured().run(random_requests(4, tokens=16), always(setup_of("eagle2"))).rounds
    assert all(is_timed(one) and one.draft_ms + one.verify_ms <= one.round_ms for one in done)
    assert any(one.draft_ms > 0.0 for one in done) and any(one.verify_ms > 0.0 for one in done)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_rounds_run_ahead_and_wait_for_their_own_results_alone(kind: str, slots: int) -> None:
    target, model = (in_regime(on_gpu(scale), "cuda-graph") for scale in (0.0, 0.06))
    drafters = {"it": ModelDrafter(model, slots=slots, capacity=CAPACITY)}
    decoder = Engine(target, drafters, always(setup_of(kind)), slots=slots, capacity=CAPACITY)
    requests = [replace(one, max_new_tokens=60) for one in random_requests(slots, tokens=1)]
    assert_ahead_without_waits(decoder, requests)


def assert_ahead_without_waits(decoder: Engine, requests: Many[Request], target: CausalModel | None = None) -> None:
    """Let a decoder run ahead of the host, which waits for results alone; its target is the usual one where None."""
    sequences = [decoder.admit(request, index) for index, request in enumerate(requests)]
    ahead = 0
    try:
        torch.cuda.set_sync_debug_mode("error")
        while decoder.running:
            done = decoder.step()
            assert not done.faults and is_timed(done)
            assert decoder._overlap._rounds is not None
            ahead += decoder._overlap._rounds._bet is not None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = run(target or on_gpu(0.0), requests).outputs
    assert [tuple(one.emitted) for one in sequences] == expected
    assert ahead > 5


def on_gpu(scale: float) -> LeanModel:
    llama = tiny_llama(layers=2, seed=0, hidden=64)  # with heads that the kernels take
    return LeanModel((perturbed(llama, scale) if scale else llama).float().cuda())


def test_recorders_of_these_tests_fail_when_told() -> None:
    recorder = Watched()
    recorder.fails = lambda recordings: True
    with pytest.raises(MemoryError):
        recorder.record(lambda: torch.zeros(1))
