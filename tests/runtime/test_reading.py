"""Who reads prompts when: whoever drafts now at once, everybody else where it is asked to draft."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import HeadDrafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import PLAINLY, run
from ..support.tiny_heads import head_weights, tiny_head
from ..support.tiny_models import perturbed, tiny_llama

LLAMA = tiny_llama(layers=3, seed=3)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.2))
CHAIN = ChainPolicy(length=3)
ROOM = 200
PROMPTS = [
    tuple(int(token) for token in np.random.default_rng(n).integers(0, TARGET.vocabulary, 40 + 7 * n)) for n in range(4)
]
REQUESTS = [Request(prompt=prompt, max_new_tokens=60 + n, seed=n) for n, prompt in enumerate(PROMPTS)]


class Noted(ModelDrafter):
    """Notes how many tokens of which slot it reads outside rounds, and in them."""

    def __init__(self) -> None:
        super().__init__(DRAFTER, slots=3, capacity=ROOM)
        self.noted: list[tuple[int, int]] = []
        self.rounds = 0

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        if len(tokens) > held:
            self.noted.append((slot, len(tokens) - held))
        return super().read_along(slot, tokens, held)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        self.rounds += 1
        return super().draft(sequences, policy)


def setup_by(name: str, policy: TreePolicy = CHAIN) -> StepConfig:
    return StepConfig(policy=policy, drafter=name)


def decoder(setups: list[StepConfig], drafters: dict[str, Drafter], slots: int = 3) -> Engine:
    """Rounds take the setups in turn; the last one stays."""
    return Engine(
        TARGET,
        drafters,
        lambda *_: setups.pop(0) if len(setups) > 1 else setups[0],
        slots=slots,
        capacity=ROOM,
    )


def test_before_any_round_everybody_reads() -> None:
    a, b = Noted(), Noted()
    decoder([setup_by("a")], {"a": a, "b": b}).admit(REQUESTS[0])
    assert a.noted == b.noted == [(0, len(PROMPTS[0]))]


def test_then_whoever_drafted_last_does_and_nobody_else() -> None:
    a, b = Noted(), Noted()
    decoding = decoder([setup_by("a"), PLAIN], {"a": a, "b": b})
    decoding.admit(REQUESTS[0])
    decoding.step()
    decoding.admit(REQUESTS[1])
    decoding.step()
    decoding.admit(REQUESTS[2])
    assert a.noted == [(0, len(PROMPTS[0])), (1, len(PROMPTS[1]))]
    assert b.noted == [(0, len(PROMPTS[0]))]


def test_whoever_is_asked_later_reads_it_then_once() -> None:
    a, b = Noted(), Noted()
    decoding = decoder([setup_by("a"), setup_by("a"), setup_by("b")], {"a": a, "b": b})
    decoding.admit(REQUESTS[0])
    decoding.step()
    decoding.admit(REQUESTS[1])
    decoding.step()
    b.noted.clear()
    before = [len(sequence.tokens) for sequence in decoding.running]
    assert decoding.step().is_behind  # so that nobody takes its time for a round's
    assert b.noted == [(0, before[0] - 1 - len(PROMPTS[0])), (1, before[1] - 1)]
    b.noted.clear()
    assert not decoding.step().is_behind
    assert b.noted == []


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_a_prompt_is_read_along_by_whoever_drafts_now(pieces: int) -> None:
    a, b = Noted(), Noted()
    decoding = decoder([setup_by("a")], {"a": a, "b": b})
    decoding.admit(REQUESTS[0])
    decoding.step()
    a.noted.clear()
    b.noted.clear()
    reading = decoding.begin(REQUESTS[1])
    while reading.left:
        assert not decoding.step().faults
        decoding.read_on(reading, pieces)
    assert sum(count for _, count in a.noted) == len(PROMPTS[1])
    assert b.noted == []


@pytest.mark.lossless
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_output_is_the_targets_whoever_changes_while_a_prompt_is_read(at: int, temperature: float) -> None:
    requests = [Request(prompt=p, max_new_tokens=16, temperature=temperature, seed=n) for n, p in enumerate(PROMPTS)]
    expected = run(TARGET, requests, PLAINLY).outputs
    a, b = Noted(), Noted()
    setups = [*[setup_by("a")] * at, *[setup_by("b")] * 2, PLAIN, setup_by("a"), *[setup_by("b")] * 3, setup_by("a")]
    decoding = decoder(setups, {"a": a, "b": b})
    found = [decoding.admit(requests[0], 0)]
    for index, request in enumerate(requests[1:], start=1):
        while not decoding.has_room:
            decoding.step()
        reading = decoding.begin(request, index)
        while reading.left:
            decoding.read_on(reading, 9)
            if decoding.running:
                decoding.step()
        found.append(reading.sequence)
    while decoding.running:
        decoding.step()
    assert [tuple(sequence.emitted) for sequence in found] == expected
    assert a.rounds and b.rounds


def others() -> dict[str, tuple[TreePolicy, Drafter]]:
    stack = StackPolicy(drafters=("near", "lookup"), lengths=(3, 2))
    hybrid = HybridPolicy(text=SuffixPolicy(length=4, min_match=3), model=CHAIN)
    return {
        "model": (CHAIN, ModelDrafter(DRAFTER, slots=3, capacity=ROOM)),
        "hybrid": (hybrid, HybridDrafter(ModelDrafter(DRAFTER, slots=3, capacity=ROOM))),
        "stack": (stack, stack_drafter(stack, {"near": DRAFTER}, slots=3, capacity=ROOM)),
    }


@pytest.mark.lossless
@pytest.mark.parametrize("kind", ["model", "hybrid", "stack"])
def test_what_reads_late_drafts_what_it_would_have(kind: str) -> None:
    expected = run(TARGET, REQUESTS, PLAINLY).outputs
    policy, late = others()[kind]
    at_once = others()[kind][1]
    for way, drafter in (("late", late), ("at once", at_once)):
        first = PLAIN if way == "late" else setup_by("it", policy)
        decoding = decoder([first, setup_by("it", policy)], {"it": drafter})
        outputs = [decoding.admit(REQUESTS[3], 3)]
        decoding.step()
        outputs += [decoding.admit(request, index) for index, request in enumerate(REQUESTS[:2])]
        while decoding.running:
            assert not decoding.step().faults
        assert [tuple(s.emitted) for s in outputs] == [expected[3], *expected[:2]]


@pytest.mark.lossless
def test_a_head_reads_late_what_its_target_kept() -> None:
    head = tiny_head("eagle", LLAMA, head_weights("eagle", LLAMA))
    target = tapped_for(TARGET, [head])
    expected = run(TARGET, REQUESTS, PLAINLY).outputs
    setups = [PLAIN, PLAIN, setup_by("it")]
    decoding = Engine(
        target,
        {"it": HeadDrafter(head, slots=3, capacity=ROOM)},
        lambda *_: setups.pop(0) if len(setups) > 1 else setups[0],
        slots=3,
        capacity=ROOM,
    )
    found = [decoding.admit(REQUESTS[0], 0)]
    decoding.step()
    found += [decoding.admit(request, index) for index, request in enumerate(REQUESTS[1:3], start=1)]
    while decoding.running:
        assert not decoding.step().faults
    assert [tuple(sequence.emitted) for sequence in found] == expected[:3]
