"""Block drafters change no output; their trees replay from a recording; controls show that these tests could fail."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import numpy as np
import pytest
import torch

from spectune.planner.lockstep import replay_results
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import RecordedScorer, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow, results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.records.acceptance import PromptTrace
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.block import BlockDrafter
from spectune.runtime.drafters.features import GivenFeatures
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.block import Levels
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ..support.decoded_runs import CAPACITY, POLICIES, RecordingDrafter, random_requests, run
from ..support.pairwise import crossed
from ..support.replayed_drafts import (
    REPLAYED,
    accepted,
    decoded_alone,
    ending_requests,
    features_of_others,
    told_otherwise_later,
    trace_of,
)
from ..support.tiny_blocks import DEPTH, KINDS, block_weights, tiny_block
from ..support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
BLOCKS = {kind: tiny_block(kind, LLAMA, block_weights(kind, LLAMA)) for kind in KINDS}
RECIPE = Recipe(children=4, trees=tuple(Eagle2Policy(top_k=width, depth=4) for width in (1, 3, 4)))
TREES = [name for name in POLICIES if name != "lookup"]


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


@crossed(kind=KINDS, policy=TREES, temperature=(0.0, 0.8))
def test_trees_on_blocks_change_no_output(kind: Kind, policy: str, temperature: float) -> None:
    """T1; and T8: what is emitted is what was accepted and one token a round."""
    drafter = BlockDrafter(BLOCKS[kind], slots=3, capacity=CAPACITY)
    schedule = always(StepConfig(policy=POLICIES[policy], drafter="it"))
    requests = random_requests(7, tokens=14, temperature=temperature)
    found = run(tapped_for(TARGET, [BLOCKS[kind]]), requests, schedule, {"it": drafter})
    assert found.outputs == plain(temperature)
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_stop_or_begin_with_one_token_end_where_the_target_ends_them(kind: Kind) -> None:
    """T7: a stop token inside a draft, and no room for a whole draft."""
    requests = ending_requests(plain(0.0))
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    drafters = {"it": BlockDrafter(BLOCKS[kind], slots=3, capacity=CAPACITY)}
    found = run(tapped_for(TARGET, [BLOCKS[kind]]), requests, schedule, drafters)
    assert found.outputs == run(TARGET, requests, slots=1).outputs


class Oracle(BlockDrafter):
    """Says the target's own text: T4."""

    def begin(self, sequences: Many[Sequence]) -> Levels:
        super().begin(sequences)
        said = torch.zeros(len(sequences), DEPTH, TARGET.vocabulary)
        for row, sequence in enumerate(sequences):
            ahead = plain(0.0)[sequence.index][len(sequence.emitted) :][:DEPTH]
            said[row, range(len(ahead)), list(ahead)] = 99.0
        return Levels(said)


def test_a_block_that_says_the_target_s_own_text_is_taken_whole() -> None:
    drafter = Oracle(BLOCKS["medusa"], slots=1, capacity=CAPACITY)
    schedule = always(StepConfig(policy=ChainPolicy(length=4), drafter="it"))
    found = run(
        tapped_for(TARGET, [BLOCKS["medusa"]]), random_requests(7, tokens=14), schedule, {"it": drafter}, slots=1
    )
    assert found.outputs == plain(0.0)
    assert all(done.kept == [5] for done in found.rounds if not done.finished)


class Liar(BlockDrafter):
    """Drafts on features of other texts."""

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        return features_of_others(cache)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_on_wrong_features_changes_no_output_but_drafts_otherwise(kind: Kind) -> None:
    """T3, and the control of every test that compares drafts."""
    seen = []
    for made in (Liar, BlockDrafter):
        drafter = RecordingDrafter(made(BLOCKS[kind], slots=1, capacity=CAPACITY))
        target, schedule = (
            tapped_for(TARGET, [BLOCKS[kind]]),
            always(StepConfig(policy=POLICIES["chain"], drafter="it")),
        )
        decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        drafter.drafter.attach(decoder._cache)
        assert [decoded_alone(decoder, request) for request in random_requests(7, tokens=14)] == plain(0.0)
        seen.append(drafter.rounds)
    assert seen[0] != seen[1]


class Keeping(BlockDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(BLOCKS[kind], slots=1, capacity=CAPACITY)
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
def recorded(kind: Kind, temperature: float) -> tuple[PromptTrace, ...]:
    return record_prompts(BLOCKS[kind], texts(temperature), RECIPE)


@crossed(kind=KINDS, policy=REPLAYED, temperature=(0.0, 0.8))
def test_a_replay_draws_the_trees_that_decoding_drew(kind: Kind, policy: TreePolicy, temperature: float) -> None:
    compared = 0
    for (request, text), prompt in zip(texts(temperature), recorded(kind, temperature), strict=True):
        drafter, trace = Keeping(kind), trace_of(kind, (prompt,), temperature)
        target, schedule = tapped_for(TARGET, [BLOCKS[kind]]), always(StepConfig(policy=policy, drafter="it"))
        decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        assert decoded_alone(decoder, request) == text
        results = results_of(policy, recording_of(trace))
        for length, live in drafter.drawn.items():
            place = length - len(request.prompt) - 1
            scorer = RecordedScorer(recording_of(trace), np.array([place]))
            replayed = grow(policy, scorer, 1)
            assert not scorer.censored.any()
            assert replayed.parents.tolist() == live.parents.tolist() and replayed.widths == live.widths
            truth = [*text[length - len(request.prompt) :], *([-2] * 9)]
            assert replayed.tokens[0, 1:].sum() == accepted(live, truth) == results.accepted[place]
            compared += 1
    assert compared > 15


@pytest.mark.thinned
@pytest.mark.parametrize("policy", REPLAYED, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_counts_the_rounds_that_decoding_runs(kind: Kind, policy: TreePolicy) -> None:
    trace = trace_of(kind, recorded(kind, 0.0), 0.0)
    recording = recording_of(trace)
    replay = replay_results(results_of(policy, recording), recording.rows, 1)
    drafter = BlockDrafter(BLOCKS[kind], slots=1, capacity=CAPACITY)
    schedule = always(StepConfig(policy=policy, drafter="it"))
    asked = [request for request, _ in texts(0.0)]
    live = run(tapped_for(TARGET, [BLOCKS[kind]]), asked, schedule, {"it": drafter}, slots=1)
    assert replay.kept[:, 0].tolist() == [done.kept[0] for done in live.rounds]
    assert [tuple(w for w in row if w) for row in replay.widths.tolist()] == [done.widths for done in live.rounds]


def test_a_block_recorded_as_if_it_were_a_model_would_replay_wrongly() -> None:
    """The control: a token deeper in a tree a block says something else than when the text has come so far."""
    prompts = recorded("ctc", 0.0)
    honest, wrong = (
        results_of(ChainPolicy(length=3), recording_of(trace_of("ctc", prompts, 0.0, prefix_exact=is_exact)))
        for is_exact in (False, True)
    )
    differ = sum(told_otherwise_later(prompt) for kind in KINDS for prompt in recorded(kind, 0.0))
    assert differ > 0 and honest.accepted.shape == wrong.accepted.shape
