"""A DFlash drafter changes no output, and its trees replay from one recording, at every length of its block."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import numpy as np
import pytest
import torch

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
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.tapped import tapped_for
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ..support.decoded_runs import CAPACITY, POLICIES, random_requests, run
from ..support.dflash_folders import dflash_drafter, dflash_target
from ..support.pairwise import crossed
from ..support.replayed_drafts import (
    REPLAYED,
    accepted,
    decoded_alone,
    ending_requests,
    features_of_others,
    trace_of,
)

pytestmark = pytest.mark.lossless

TARGET, DRAFTER = dflash_target(torch.float64), dflash_drafter(torch.float64)
RECIPE = Recipe(children=4, trees=tuple(Eagle2Policy(top_k=width, depth=4) for width in (1, 3, 4)))
TREES = [name for name in POLICIES if name != "lookup"]
LENGTHS = tuple(ChainPolicy(length=length) for length in range(1, DRAFTER.depth + 1))


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


@crossed(policy=TREES, temperature=(0.0, 0.8), slots=(1, 3))
def test_trees_on_a_block_change_no_output(policy: str, temperature: float, slots: int) -> None:
    drafter = BlockDrafter(DRAFTER, slots=slots, capacity=CAPACITY)
    schedule = always(StepConfig(policy=POLICIES[policy], drafter="it"))
    requests = random_requests(7, tokens=14, temperature=temperature)
    found = run(tapped_for(TARGET, [DRAFTER]), requests, schedule, {"it": drafter}, slots=slots)
    assert found.outputs == plain(temperature)
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)


def test_texts_that_stop_or_begin_with_one_token_end_where_the_target_ends_them() -> None:
    requests = ending_requests(plain(0.0))
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    drafters = {"it": BlockDrafter(DRAFTER, slots=3, capacity=CAPACITY)}
    found = run(tapped_for(TARGET, [DRAFTER]), requests, schedule, drafters)
    assert found.outputs == run(TARGET, requests, slots=1).outputs


class Keeping(BlockDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self) -> None:
        super().__init__(DRAFTER, slots=1, capacity=CAPACITY)
        self.drawn: dict[tuple[int, ...], DraftBatch] = {}

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        self.drawn[tuple(sequences[0].tokens)] = draft
        return draft


class Liar(Keeping):
    """Drafts on features of other texts."""

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        return features_of_others(cache)


def decoded(drafter: Keeping, policy: TreePolicy, requests: Many[Request]) -> list[tuple[int, ...]]:
    """Return the outputs of requests decoded one after the other."""
    schedule = always(StepConfig(policy=policy, drafter="it"))
    target = tapped_for(TARGET, [DRAFTER])
    decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
    drafter.attach(decoder._cache)
    return [decoded_alone(decoder, request) for request in requests]


def test_wrong_features_change_no_output_but_draft_otherwise() -> None:
    """The control of every test that compares drafts."""
    seen = []
    for drafter in (Liar(), Keeping()):
        assert decoded(drafter, ChainPolicy(length=3), random_requests(7, tokens=14)) == plain(0.0)
        seen.append({text: drawn.tokens.tolist() for text, drawn in drafter.drawn.items()})
    assert seen[0] != seen[1]


@cache
def recorded(temperature: float) -> tuple[list[tuple[Request, tuple[int, ...]]], tuple[PromptTrace, ...]]:
    asked = random_requests(3, tokens=20, temperature=temperature)
    texts = list(zip(asked, continuations(TARGET, asked), strict=True))
    return texts, record_prompts(DRAFTER, texts, RECIPE)


@crossed(policy=(*REPLAYED, *LENGTHS), temperature=(0.0, 0.8))
def test_one_recording_replays_every_length_and_tree_that_decoding_draws(
    policy: TreePolicy, temperature: float
) -> None:
    texts, prompts = recorded(temperature)
    compared = 0
    for (request, text), prompt in zip(texts, prompts, strict=True):
        drafter, recording = Keeping(), recording_of(trace_of("dflash", (prompt,), temperature))
        assert decoded(drafter, policy, [request]) == [text]
        results = results_of(policy, recording)
        for before, live in drafter.drawn.items():
            place = len(before) - len(request.prompt) - 1
            scorer = RecordedScorer(recording, np.array([place]))
            replayed = grow(policy, scorer, 1)
            assert not scorer.censored.any()
            assert replayed.parents.tolist() == live.parents.tolist() and replayed.widths == live.widths
            truth = [*text[place + 1 :], *([-2] * 9)]
            assert replayed.tokens[0, 1:].sum() == accepted(live, truth) == results.accepted[place]
            compared += 1
    assert compared > 15
