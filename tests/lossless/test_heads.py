"""Heads change no output; their trees replay from a recording; controls show that these tests could fail."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import numpy as np
import pytest

from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import RecordedScorer, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.features import GivenFeatures
from spectune.runtime.drafters.head import HeadDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ..support.decoded_runs import CAPACITY, POLICIES, RecordingDrafter, random_requests, run
from ..support.replayed_drafts import features_of_others
from ..support.tiny_heads import head_weights, tiny_head
from ..support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=3, seed=0)
TARGET = LeanModel(LLAMA)
FORMS: tuple[Form, ...] = ("eagle", "eagle3")
HEADS = {form: tiny_head(form, LLAMA, head_weights(form, LLAMA)) for form in FORMS}
RECIPE = Recipe(children=4, trees=tuple(Eagle2Policy(top_k=width, depth=3) for width in (1, 3)))
TREES = [name for name in POLICIES if name != "lookup"]


def head_run(form: Form, kind: str, temperature: float, slots: int = 3) -> list[tuple[int, ...]]:
    drafter = HeadDrafter(HEADS[form], slots=slots, capacity=CAPACITY)
    schedule = always(StepConfig(policy=POLICIES[kind], drafter="it"))
    requests = random_requests(7, tokens=14, temperature=temperature)
    return run(tapped_for(TARGET, [HEADS[form]]), requests, schedule, {"it": drafter}, slots=slots).outputs


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


@pytest.mark.thinned
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize(("form", "temperature"), [("eagle", 0.0), ("eagle3", 0.8)])
def test_trees_on_heads_change_no_output(form: Form, kind: str, temperature: float) -> None:
    assert head_run(form, kind, temperature) == plain(temperature)


class Liar(HeadDrafter):
    """Drafts on features of other texts."""

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        return features_of_others(cache)


def test_a_head_on_wrong_features_changes_no_output_but_drafts_otherwise() -> None:
    requests = random_requests(7, tokens=14)
    schedule = always(StepConfig(policy=POLICIES["chain"], drafter="it"))
    seen = []
    for kind in (Liar, HeadDrafter):
        drafter = RecordingDrafter(kind(HEADS["eagle3"], slots=1, capacity=CAPACITY))
        target = tapped_for(TARGET, [HEADS["eagle3"]])
        decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        assert isinstance(drafter.drafter, HeadDrafter)
        drafter.drafter.attach(decoder._cache)
        texts = [decoded_alone(decoder, request) for request in requests]
        assert texts == plain(0.0)
        seen.append(drafter.rounds)
    assert seen[0] != seen[1]


def decoded_alone(decoder: Engine, request: Request) -> tuple[int, ...]:
    sequence = decoder.admit(request)
    while decoder.running:
        assert not decoder.step().faults
    return tuple(sequence.emitted)


class Keeping(HeadDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self, head: EagleHead) -> None:
        super().__init__(head, slots=1, capacity=CAPACITY)
        self.drawn: dict[int, DraftBatch] = {}

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        self.drawn[len(sequences[0].tokens)] = draft
        return draft


@cache
def texts(temperature: float) -> list[tuple[Request, tuple[int, ...]]]:
    asked = random_requests(3, tokens=20, temperature=temperature)
    return list(zip(asked, continuations(TARGET, asked), strict=True))


@cache
def recorded(form: Form, temperature: float) -> tuple[PromptTrace, ...]:
    return record_prompts(HEADS[form], texts(temperature), RECIPE)


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", [ChainPolicy(length=4), Eagle2Policy(verify_tokens=7, depth=3, top_k=3)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_replay_draws_the_trees_that_decoding_drew(form: Form, policy: TreePolicy, temperature: float) -> None:
    compared = 0
    for (request, text), prompt in zip(texts(temperature), recorded(form, temperature), strict=True):
        drafter = Keeping(HEADS[form])
        target, schedule = tapped_for(TARGET, [HEADS[form]]), always(StepConfig(policy=policy, drafter="it"))
        decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        assert decoded_alone(decoder, request) == text
        for length, live in drafter.drawn.items():
            place = length - len(request.prompt) - 1
            scorer = RecordedScorer(recording_of(trace_of(prompt, temperature)), np.array([place]))
            replayed = grow(policy, scorer, 1)
            assert not scorer.censored.any()
            assert replayed.parents.tolist() == live.parents.tolist()
            truth = [*text[length - len(request.prompt) :], *([-2] * 9)]
            assert replayed.tokens[0, 1:].sum() == accepted(live, truth)
            compared += 1
    assert compared > 15


def trace_of(prompt: PromptTrace, temperature: float) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="t", drafter="d", drafter_name="d", workload="w", temperature=temperature, seed=0,
        children=prompt.children, prefix_exact=True, prompts=(prompt,),
    )  # fmt: skip


def accepted(draft: DraftBatch, truth: list[int]) -> int:
    """Walk the tree token by token along the truth."""
    node, count = 0, 0
    while True:
        nodes = range(1, draft.tokens.shape[1])
        below = [c for c in nodes if draft.parents[0, c] == node and draft.tokens[0, c] == truth[count]]
        if not below:
            return count
        node, count = below[0], count + 1


def test_below_the_targets_own_token_a_head_still_drafts_on_its_own_feature() -> None:
    """The control of the replay: joined like a model's, neighbouring trees would share these nodes."""
    differ = 0
    for prompt in recorded("eagle3", 0.0):
        starts = prompt.offsets[:-1]
        for t in np.flatnonzero(prompt.next_rank[:-1] != MISS):
            own = slice(prompt.offsets[t], prompt.offsets[t + 1])
            child = np.flatnonzero((prompt.parent[own] == 0) & (prompt.rank[own] == prompt.next_rank[t]))
            differ += any(not np.allclose(prompt.log_probs[own][c], prompt.log_probs[starts[t + 1]]) for c in child)
    assert differ > 0


def test_a_recording_on_wrong_features_replays_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = recorded("eagle3", 0.0)
    along = EagleHead.along
    monkeypatch.setattr(EagleHead, "along", lambda self, text: along(self, text).flip(0))
    wrong = record_prompts(HEADS["eagle3"], texts(0.0), RECIPE)
    assert any(not np.allclose(a.log_probs[0], b.log_probs[0]) for a, b in zip(right, wrong, strict=True))
