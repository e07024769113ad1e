"""A hybrid's model drafts behind verifications that the host has not read: the same texts, trees and rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from spectune.planner.growth.room import most_drafted
from spectune.planner.policies import HybridPolicy, SuffixPolicy, SuffixTreePolicy
from spectune.planner.policies.hybrid import ElsePolicy
from spectune.runtime import requests as text_module
from spectune.runtime.ahead import acceptance as acceptance_module
from spectune.runtime.ahead import rounds as rounds_module
from spectune.runtime.ahead.behind import _Behind, _Verification
from spectune.runtime.decoder import Decoder, Round
from spectune.runtime.drafters.hybrid import LIKELY, HybridDrafter, _Odds
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.protocol import Begun
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime
from spectune.runtime.requests import Request
from spectune.runtime.setup import RoundSetup, always

from .ahead_runs import LEAN_TREES, LLAMA, SKETCH, TARGET, Captured, plainly
from .ahead_runs import Noting as Recorded
from .decoded_runs import CAPACITY, PADDED, POLICIES, Run, random_requests, run
from .fresh_states import worst_difference
from .host_reads import NoHostReads
from .pairwise import crossed
from .test_runtime_ahead import on_gpu
from .tiny_models import perturbed

pytestmark = pytest.mark.lossless

KINDS = ("chain", "static", "eagle2", *LEAN_TREES)
COPIED = SuffixPolicy(length=3, min_match=2, occurrence="last")
SELDOM = replace(COPIED, min_match=12)  # so that the model drafts nearly always
TREES = SuffixTreePolicy(nodes=5, factor=4, offset=1, least_chance=0.05, least_score=1.5)
PROMPT = (7, 3, 9, 1, 22)


@pytest.fixture(autouse=True)
def _copied_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host find every copy, as it does of trees: chains are copied by the device, in rounds ahead."""
    monkeypatch.setattr(rounds_module, "copied_on_gpu", lambda policy: None)


def setup_of(kind: str, text: SuffixPolicy | SuffixTreePolicy = COPIED, **more: tuple[int, ...]) -> RoundSetup:
    """Return how rounds of a hybrid run."""
    model = (LEAN_TREES | POLICIES)[kind]
    assert isinstance(model, ElsePolicy)
    return RoundSetup(policy=HybridPolicy(text=text, model=model), drafter="it", **more)


class Noting(HybridDrafter):
    """A hybrid's drafter that counts what was begun before it was asked."""

    begun = 0

    def take(self, sequences: Sequence[text_module.Sequence], policy: HybridPolicy, begun: Begun) -> None:
        self.begun += 1
        super().take(sequences, policy, begun)


class Hybrids:
    """A captured target with a hybrid's drafter."""

    def __init__(self, slots: int = 3, capacity: int = CAPACITY) -> None:
        self.captured = Captured(slots=slots, capacity=capacity)
        self.drafter = Noting(self.captured.drafter)

    @property
    def begun(self) -> int:
        """How often the model began before it was asked."""
        return self.drafter.begun

    def decoder(self, setup: RoundSetup) -> Decoder:
        return self.captured.decoder(always(setup), {"it": self.drafter})

    def run(
        self,
        requests: Sequence[Request],
        setup: RoundSetup,
        *,
        watch: Callable[[Decoder], None] = lambda decoder: None,
        may_fail: bool = False,
    ) -> Run:
        return self.captured.run(requests, always(setup), {"it": self.drafter}, watch=watch, may_fail=may_fail)


def eagerly(requests: Sequence[Request], setup: RoundSetup, *, slots: int = 3, capacity: int = CAPACITY) -> Run:
    """Return what a hybrid does whose forwards run as they come."""
    model = ModelDrafter(Captured().drafter_model, slots=slots, capacity=capacity, on_device=True)
    drafters = {"it": HybridDrafter(model)}
    return run(TARGET, requests, always(setup), drafters, slots=slots, capacity=capacity)


def told(rounds: Sequence[Round]) -> list[tuple[object, ...]]:
    """Return what rounds did; what a model reads first hangs on when it drafted last."""
    return [(one.sequences, one.kept, one.verify_tokens, one.widths, one.context) for one in rounds]


def assert_same(found: Run, expected: Run, requests: Sequence[Request]) -> None:
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found.rounds) == told(expected.rounds)


@crossed(kind=KINDS, slots=(1, 3), ends=("by their limits", "by stop tokens"))
def test_the_text_and_the_rounds_are_those_of_eager_forwards(kind: str, slots: int, ends: str) -> None:
    requests = random_requests(7, tokens=24)
    if ends == "by stop tokens":
        texts = plainly(requests)
        requests = [replace(one, stop=frozenset(text[6:7])) for one, text in zip(requests, texts, strict=True)]
    for text in (COPIED, SELDOM, TREES):
        setup, hybrids = setup_of(kind, text, run_tokens=PADDED), Hybrids(slots)
        assert_same(hybrids.run(requests, setup), eagerly(requests, setup, slots=slots), requests)
        assert hybrids.begun > 3 or text is not SELDOM


@pytest.mark.parametrize("kind", KINDS)
def test_after_every_round_the_caches_are_fresh_prefills(kind: str) -> None:
    hybrids = Hybrids()
    verified: list[tuple[int, Tensor]] = []
    drafted: list[tuple[int, Tensor]] = []

    def watch(decoder: Decoder) -> None:
        model = hybrids.captured.drafter
        for slot, one in enumerate(decoder.running):
            verified.append((one.index, decoder._cache.states[:, slot, : one.context].clone()))
            drafted.append((one.index, model._cache.states[:, slot, : model._cached[slot]].clone()))

    requests = random_requests(7, tokens=16)
    done = hybrids.run(requests, setup_of(kind, SELDOM), watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert hybrids.begun > 5 and len(verified) > 20
    assert worst_difference(LLAMA, texts, verified) < 1e-9
    assert worst_difference(SKETCH, texts, drafted) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_drafts_before_the_host_has_read_the_round_before(kind: str) -> None:
    hybrids, known = Hybrids(slots=1), list[int]()
    decoder = hybrids.decoder(setup_of(kind, SELDOM))
    sequence = decoder.admit(Request(prompt=PROMPT, max_new_tokens=40))
    hybrids.captured.drafts.note = lambda: known.append(len(sequence.tokens))
    lengths = []
    while decoder.running:
        lengths.append(len(sequence.tokens))
        decoder.step()
    begun = [length for length in lengths if len(PROMPT) + 40 - length > 1]  # where the text may go on
    assert len(lengths) > 8 and known == [lengths[0], *begun]  # the first draft is asked for


def test_a_model_that_nobody_asks_does_not_draft() -> None:
    hybrids = Hybrids(slots=1)
    decoder = hybrids.decoder(setup_of("chain", replace(COPIED, min_match=1)))
    decoder.admit(Request(prompt=(4, 4, 4, 4), max_new_tokens=40))
    rounds = []
    while decoder.running:
        rounds.append(decoder.step())
    copied = sum(not one.widths for one in rounds)
    asked = len(rounds) - copied
    assert copied > 4 and hybrids.captured.drafts.replays <= 2 * asked + 1


def test_a_draft_under_way_follows_its_text_to_another_slot_and_none_is_taken_for_a_newcomer() -> None:
    hybrids, requests = Hybrids(), random_requests(5, tokens=30)
    decoder = hybrids.decoder(setup_of("eagle2", SELDOM))
    sequences = [decoder.admit(request, index) for index, request in enumerate(requests[:3])]
    for _ in range(3):
        decoder.step()
    before = hybrids.captured.drafts.replays
    decoder.cancel(sequences[0])  # the last one moves to its slot
    assert decoder.step().widths and hybrids.captured.drafts.replays <= before + 1
    for index in (3, 4):
        sequences.append(decoder.admit(requests[index], index))
        decoder.step()
        decoder.step()
        if index == 3:
            decoder.cancel(sequences[1])
    while decoder.running:
        assert not decoder.step().faults
    texts = plainly(requests)
    for place, one in enumerate(sequences):
        assert tuple(one.emitted) == texts[place][: len(one.emitted)]
        assert len(one.emitted) == len(texts[place]) or place in (0, 1)


def test_a_draft_of_fewer_texts_is_taken_for_its_own_where_a_newcomer_copies() -> None:
    hybrids = Hybrids(slots=2)
    decoder = hybrids.decoder(setup_of("eagle2", replace(COPIED, min_match=5)))
    request = Request(prompt=PROMPT, max_new_tokens=30)
    sequence = decoder.admit(request)
    while hybrids.begun < 2:
        decoder.step()
    before = hybrids.captured.drafts.replays
    newcomer = decoder.admit(Request(prompt=(4, 6) * 8, max_new_tokens=9), 1)
    newcomer.tokens[-1] = 4  # so that there is a copy to be found
    done = decoder.step()
    assert not done.faults and done.widths and hybrids.captured.drafts.replays == before
    while decoder.running:
        assert not decoder.step().faults
    assert [tuple(sequence.emitted)] == plainly([request])


def test_drafters_of_one_policy_begin_each_its_own_drafts() -> None:
    """And each holds what it says it has read."""
    mine, other = Hybrids(slots=1), Captured(slots=1, drafter_model=LeanModel(perturbed(LLAMA, 0.4)))
    drafters = {"it": mine.drafter, "other": Noting(other.drafter)}
    setup = setup_of("chain", SELDOM)
    decoder = mine.captured.decoder(always(setup), drafters)
    sequence, request = (
        decoder.admit(Request(prompt=PROMPT, max_new_tokens=60)),
        Request(prompt=PROMPT, max_new_tokens=60),
    )
    states: list[tuple[int, Tensor]] = []
    place = 0
    while decoder.running:
        decoder.step(replace(setup, drafter="other" if place // 6 % 2 else "it"))
        cached = other.drafter._cached[0]
        states.append((0, other.drafter._cache.states[:, 0, :cached].clone()))
        place += 1
    assert min(one.begun for one in (mine.drafter, drafters["other"])) > 3
    assert [tuple(sequence.emitted)] == plainly([request])
    assert worst_difference(perturbed(LLAMA, 0.4), [tuple(sequence.tokens)], states) < 1e-9


def test_what_a_recording_uses_is_held_by_more_than_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph keeps nothing of what it reads and writes."""
    hybrids, held = Hybrids(), list[_Verification]()
    recorded = _Behind._recorded

    def noted(work: _Behind, step: ForwardInput) -> _Verification:
        found = recorded(work, step)
        held.append(found)
        return found

    monkeypatch.setattr(_Behind, "_recorded", noted)
    hybrids.run(random_requests(3, tokens=12), setup_of("eagle2", SELDOM))
    assert held
    for one in held:
        assert isinstance(one.graph, Recorded)
        used = [cell.cell_contents for cell in one.graph.run.__closure__ or ()]
        tensors = [use for use in used if isinstance(use, Tensor) and use.numpy() is not one.trees]
        mine = {one.placed.data_ptr(), torch.from_numpy(one.trees).data_ptr()}
        assert tensors and {tensor.data_ptr() for tensor in tensors} <= mine


def test_nothing_is_begun_behind_the_last_tokens_of_all_texts() -> None:
    hybrids = Hybrids(slots=1)
    decoder = hybrids.decoder(setup_of("chain", SELDOM))
    decoder.admit(Request(prompt=PROMPT, max_new_tokens=2))
    decoder.step()
    assert not decoder.running and not hybrids.begun


def test_a_draft_that_nobody_takes_is_told() -> None:
    hybrids = Hybrids(slots=1)
    decoder = hybrids.decoder(setup_of("chain", SELDOM))
    decoder.admit(Request(prompt=PROMPT, max_new_tokens=30))
    while not hybrids.begun:
        assert not decoder.step().unused
    copying = setup_of("chain", replace(COPIED, min_match=1))
    sequence = decoder.running[0]
    sequence.tokens[-1] = sequence.tokens[1]  # so that there is a copy to be found
    done = decoder.step(copying)
    assert (done.widths, done.unused) == ((), (1, 1, 1))


DRAFT_MS = 2.4  # of a real drafter; the host's work beside it takes a tenth


@pytest.mark.parametrize(("chance", "draft_ms"), list(product([0.5, 0.7, 0.85, 0.95, 1.0], [0.2, 0.5, DRAFT_MS])))
def test_what_is_begun_unasked_loses_next_to_nothing_and_gains_where_it_can(chance: float, draft_ms: float) -> None:
    odds, dice, host_ms, rounds = _Odds(), random.Random(3), 0.25, 4000
    begun = dropped = 0
    saved_ms = 0.0
    for _ in range(rounds):
        is_begun, is_asked = odds.are_good(8), dice.random() < chance
        odds.note_asked(is_asked)
        begun += is_begun
        if is_begun and is_asked:
            odds.note_taken(8, draft_ms, host_ms)
            saved_ms += min(draft_ms, host_ms)
        elif is_begun:
            dropped += 1
            saved_ms -= max(draft_ms - host_ms, 0.0)
    assert saved_ms / rounds > -0.03 * draft_ms
    assert begun > 0.9 * rounds or chance < 0.9 or draft_ms == DRAFT_MS
    assert saved_ms / rounds > 0.95 * min(draft_ms, host_ms) or chance < 1.0
    assert dropped < 0.08 * rounds or draft_ms < DRAFT_MS
    assert odds.are_good(1) == (odds._asked >= LIKELY), "of one text nothing was learned"


def test_how_long_a_draft_takes_beside_the_host_decides_whether_another_is_begun() -> None:
    def begun_where_it_takes(device_ms: float) -> int:
        class Timed(Noting):
            def take(self, sequences: Sequence[text_module.Sequence], policy: HybridPolicy, begun: Begun) -> None:
                super().take(sequences, policy, replace(begun, took_ms=lambda: device_ms))

        hybrids = Hybrids(slots=1)
        drafter = Timed(hybrids.captured.drafter)
        decoder = hybrids.captured.decoder(always(setup_of("chain", SELDOM)), {"it": drafter})
        decoder.admit(Request(prompt=PROMPT, max_new_tokens=80))
        copying = setup_of("chain", replace(COPIED, min_match=1))
        sequence, rounds = decoder.running[0], 0
        while decoder.running:
            rounds += 1
            if rounds % 5 == 0:
                sequence.tokens[-1] = sequence.tokens[1]  # so that there is a copy to be found
            decoder.step(copying if rounds % 5 == 0 else None)
        return drafter.begun

    assert begun_where_it_takes(1e9) < begun_where_it_takes(1e-9) - 2


@pytest.mark.parametrize("tokens", [18, 19, 20, 21])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_begun_behind_the_end_of_a_cache(kind: str, tokens: int) -> None:
    setup, request = setup_of(kind, SELDOM), Request(prompt=(1, 2, 3), max_new_tokens=tokens)
    needed = max(setup.policy.max_verify_tokens, most_drafted(setup.policy) + 1, 2)
    hybrids = Hybrids(slots=1, capacity=len(request.prompt) + tokens - 2 + needed)
    assert hybrids.run([request], setup).outputs == plainly([request]) and hybrids.begun


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_work_reads_nothing_on_the_host(kind: str) -> None:
    hybrids = Hybrids()
    hybrids.run(random_requests(3, tokens=12), setup_of(kind, SELDOM))
    works = [*hybrids.captured.targets.recorded, *hybrids.captured.drafts.recorded]
    assert hybrids.begun and works
    with NoHostReads(), torch.inference_mode():
        for work in works:
            work.run()


@pytest.mark.parametrize("who", ["target", "drafter"])
def test_what_cannot_be_recorded_is_told_once_and_rounds_go_on_as_they_were(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, setup, hybrids = random_requests(5, tokens=20), setup_of("eagle2", SELDOM), Hybrids(slots=1)
    work = "_recorded" if who == "target" else "_recorded_draft"
    refused: list[str] = []

    def failing(*told: object) -> None:
        refused.append(who)
        raise MemoryError("no room for another recording")

    monkeypatch.setattr(_Behind, work, failing)
    found, expected = hybrids.run(requests, setup, may_fail=True), eagerly(requests, setup, slots=1)
    assert_same(found, expected, requests)
    (fault,) = (fault for one in found.rounds for fault in one.faults)
    assert "wait for the host from now on: MemoryError: no room for another recording" in fault.reason
    assert fault.is_memory and refused == [who] and not hybrids.begun


def nothing_accepted(tokens: Tensor, parents: Tensor, sees: Tensor, best: Tensor) -> Tensor:
    return parents < 0


def test_another_acceptance_on_the_device_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, setup = random_requests(5, tokens=24), setup_of("static", SELDOM)
    expected = eagerly(requests, setup)
    assert max(kept for one in expected.rounds for kept in one.kept) > 2
    monkeypatch.setattr(acceptance_module, "accepted_nodes", nothing_accepted)
    hybrids = Hybrids()
    assert hybrids.run(requests, setup).outputs != expected.outputs  # keys of accepted nodes lie where they were
    assert hybrids.begun


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_the_model_drafts_behind_and_nobody_waits_for_more_than_a_result(kind: str, slots: int) -> None:
    target, model = (in_regime(on_gpu(scale), "cuda-graph") for scale in (0.0, 0.06))
    drafter = Noting(ModelDrafter(model, slots=slots, capacity=CAPACITY))
    setup = setup_of(kind, SELDOM)
    decoder = Decoder(target, {"it": drafter}, always(setup), slots=slots, capacity=CAPACITY)
    requests = [replace(one, max_new_tokens=60) for one in random_requests(slots, tokens=1)]
    sequences = [decoder.admit(request, index) for index, request in enumerate(requests)]
    try:
        torch.cuda.set_sync_debug_mode("error")
        while decoder.running:
            assert not decoder.step().faults
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [tuple(one.emitted) for one in sequences] == run(on_gpu(0.0), requests).outputs
    assert drafter.begun > 5
