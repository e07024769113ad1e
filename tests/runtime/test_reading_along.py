"""Prompts read in pieces: drafters read along, and draft behind them what they draft behind one read at once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from spectune.planner.inputs import LOOKUP
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.stack import StackDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.prefill import Prefill
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.tiny_blocks import KINDS, block_weights, tiny_block
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_heads import head_weights, tiny_head
from ..support.tiny_models import perturbed, tiny_llama
from ..support.tiny_recycling import tiny_recycling

LLAMA = tiny_llama(layers=3, seed=0)
TARGET = LeanModel(LLAMA)
PIECE, SLOTS, CAPACITY = 5, 3, 120
PROMPT = tuple(np.random.default_rng(1).integers(0, 24, 33).tolist())
LONG = Request(prompt=PROMPT + PROMPT[:9], max_new_tokens=24)  # its end occurred before: a copy is found
SHORT = Request(prompt=(3, 1, 4), max_new_tokens=60)
STACK = StackPolicy(drafters=("small", "tiny"), lengths=(4, 2), siblings=1)


class Lengths(LeanModel):
    """A model that writes down how many tokens it reads at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(perturbed(LLAMA, 0.02, seed))
        self.read: list[int] = []

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        self.read.append(step.tokens.shape[1])
        return super().forward(step, cache)


SMALL, TINY = Lengths(0), Lengths(1)
BESIDE: dict[str, CausalModel] = {
    "eagle": tiny_head("eagle", LLAMA, head_weights("eagle", LLAMA)),
    "eagle3": tiny_head("eagle3", LLAMA, head_weights("eagle3", LLAMA)),
    **{kind: tiny_block(kind, LLAMA, block_weights(kind, LLAMA)) for kind in KINDS},
    "recycling": tiny_recycling(LLAMA),
    "exit": tiny_exit(TARGET, exit_weights(32), 2),
}
TREE, CHAIN = Eagle2Policy(verify_tokens=9, depth=3, top_k=3), ChainPolicy(length=3)
HYBRID = HybridPolicy(text=SuffixPolicy(length=4, min_match=3), model=CHAIN)
OWN: dict[str, tuple[TreePolicy, Callable[[], Drafter]]] = {
    "model": (TREE, lambda: model_drafter(SMALL, slots=SLOTS, capacity=CAPACITY)),
    "hybrid": (HYBRID, lambda: HybridDrafter(model_drafter(SMALL, slots=SLOTS, capacity=CAPACITY))),
    "stack": (STACK, lambda: StackDrafter([SMALL, TINY], slots=SLOTS, capacity=CAPACITY)),
    "lookup": (LookupPolicy(length=3), LookupDrafter),
}


class Kept:
    """A drafter's `draft` that writes down what it drafted behind one text, by the text's length."""

    def __init__(self, drafter: Drafter, sequence: Sequence) -> None:
        self.drafts: dict[int, list[list[int]]] = {}
        self._draft, self._sequence = drafter.draft, sequence

    def __call__(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        drafted = self._draft(sequences, policy)
        for row, sequence in enumerate(sequences):
            if sequence is self._sequence:
                own = slice(int(drafted.sizes[row]))
                self.drafts[len(sequence.tokens)] = [
                    part[row, own].tolist() for part in (drafted.tokens, drafted.parents)
                ]
        return drafted


def drafted_behind_pieces(
    monkeypatch: pytest.MonkeyPatch, decoder: Engine, drafter: Drafter, request: Request = LONG
) -> tuple[list[int], dict[int, list[list[int]]]]:
    """Return a text and what was drafted in it; its prompt is read between rounds of others, one of which leaves."""
    others = [decoder.admit(SHORT, 0), decoder.admit(replace(SHORT, prompt=(1, 5, 9)), 1)]
    reading = decoder.begin(request, 2)
    while reading.left > PIECE:
        decoder.read_on(reading, PIECE)
        assert not decoder.step().faults
        if len(others) > 1 and reading.left < 20:
            decoder.cancel(others.pop(0))
    return finished(monkeypatch, decoder, drafter, reading)


def finished(
    monkeypatch: pytest.MonkeyPatch, decoder: Engine, drafter: Drafter, reading: Prefill
) -> tuple[list[int], dict[int, list[list[int]]]]:
    decoder.read_on(reading, 99)
    sequence, kept = reading.sequence, Kept(drafter, reading.sequence)
    monkeypatch.setattr(drafter, "draft", kept)
    while not sequence.is_finished:
        assert not decoder.step().faults
    return sequence.emitted, kept.drafts


def drafted_behind_the_whole(
    monkeypatch: pytest.MonkeyPatch, decoder: Engine, drafter: Drafter
) -> tuple[list[int], dict[int, list[list[int]]]]:
    return finished(monkeypatch, decoder, drafter, decoder.begin(LONG, 0))


def decoder_of(policy: TreePolicy, drafter: Drafter, model: CausalModel | None = None) -> Engine:
    name = LOOKUP if isinstance(drafter, LookupDrafter) else "it"
    target = TARGET if model is None else tapped_for(TARGET, [model])
    schedule = always(StepConfig(policy=policy, drafter=name))
    return Engine(target, {name: drafter}, schedule, slots=SLOTS, capacity=CAPACITY)


@pytest.mark.parametrize("kind", OWN)
def test_models_that_read_along_draft_what_they_draft_behind_a_whole_prompt(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    policy, made = OWN[kind]
    runs = []
    for run in (drafted_behind_pieces, drafted_behind_the_whole):
        drafter = made()
        runs.append(run(monkeypatch, decoder_of(policy, drafter), drafter))
    assert runs[0] == runs[1] and len(runs[0][1]) > 3


@pytest.mark.parametrize("kind", BESIDE)
def test_what_drafts_beside_a_target_reads_along_as_well(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    runs = []
    for run in (drafted_behind_pieces, drafted_behind_the_whole):
        drafter = model_drafter(BESIDE[kind], slots=SLOTS, capacity=CAPACITY)
        runs.append(run(monkeypatch, decoder_of(CHAIN, drafter, BESIDE[kind]), drafter))
    assert runs[0] == runs[1] and len(runs[0][1]) > 3


@pytest.mark.parametrize("kind", ["model", "hybrid", "stack"])
def test_no_model_reads_more_of_a_prompt_at_once_than_the_target(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    policy, made = OWN[kind]
    drafter = made()
    decoder = decoder_of(policy, drafter)
    models = [SMALL, TINY] if kind == "stack" else [SMALL]
    for other in (SHORT, replace(SHORT, prompt=(1, 5, 9))):
        decoder.admit(other, 0)
    reading = decoder.begin(LONG, 2)
    for model in models:
        model.read.clear()
    while reading.left:
        decoder.read_on(reading, PIECE)
    for model in models:
        assert max(model.read) <= PIECE and sum(model.read) == len(LONG.prompt)


@pytest.mark.parametrize("kind", ["model", "stack"])
def test_a_prompt_that_is_given_up_leaves_nothing_to_the_next_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    policy, made = OWN[kind]
    drafter, other = made(), replace(LONG, prompt=LONG.prompt[::-1])
    decoder = decoder_of(policy, drafter)
    given_up = decoder.begin(other, 0)
    decoder.read_on(given_up, 3 * PIECE)
    decoder.abandon(given_up)
    found = drafted_behind_pieces(monkeypatch, decoder, drafter)
    fresh = made()
    assert found == drafted_behind_the_whole(monkeypatch, decoder_of(policy, fresh), fresh)


def test_drafts_behind_a_piece_that_was_left_out_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is compared depends on what was read; two others join before, the third piece is the fifth."""
    policy, made = OWN["model"]
    drafter = made()
    real, read = drafter.read_along, [0]

    def forgetful(slot: int, tokens: Many[int], held: int) -> int:
        read[0] += 1
        return real(slot, tokens[::-1] if read[0] == 5 else tokens, held)

    monkeypatch.setattr(drafter, "read_along", forgetful)
    spoilt = drafted_behind_pieces(monkeypatch, decoder_of(policy, drafter), drafter)
    fresh = made()
    whole = drafted_behind_the_whole(monkeypatch, decoder_of(policy, fresh), fresh)
    assert spoilt[0] == whole[0] and spoilt[1] != whole[1]
