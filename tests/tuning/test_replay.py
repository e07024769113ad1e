"""Replay of a recorded drafter against the decoder itself, on tiny real models in float64."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from spectune.planner.kernels.slots import NOBODY
from spectune.planner.lockstep import Replay, replay_results
from spectune.planner.records.frozen_table import frozen_table
from spectune.planner.records.recording import Recording, recording_of
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy, eagle2_results
from spectune.planner.strategies.grown import replay_grown
from spectune.planner.strategies.hybrid import HybridPolicy, hybrid_results
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.planner.strategies.text import TextPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.calibration import SurvivalCurve
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.decoding import LOOKUP, Family, decode_timed, room_for
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import Recorder

from ..support.tiny_models import tiny_lean, tiny_llama

BEAMS = tuple(Eagle2Policy(top_k=width, depth=depth) for width, depth in ((1, 8), (3, 2), (10, 4)))
RECIPE = Recipe(
    children=12,
    trees=(
        *BEAMS,
        TalonPolicy(nodes=16, gate=0.25, top_k=4, children=12),
        TalonPolicy(nodes=24, gate=0.6, top_k=3, children=5),
        OptTreePolicy(nodes=14, least_gain=0.3, max_depth=6, children=12),
        OptTreePolicy(nodes=9, least_gain=0.15, max_depth=5, children=6),
    ),
)
CAST = CastPolicy(
    breadth=0.0,
    depth=0.3,
    rerank=0.4,
    max_width=10,
    max_depth=5,
    max_verify_tokens=30,
    ratio_window=4,
    draft_cost_ms=(0.0, *(1.0 + 0.1 * width for width in range(10))),
    verify_cost_ms=(0.0, *(10.0 + 0.5 * tokens for tokens in range(30))),
)
SURVIVAL = (
    SurvivalCurve(log_probs=(-3.5, -1.5, -0.2), survivals=(0.0, 0.3, 0.95), nodes=9),
    SurvivalCurve(log_probs=(-4.0, -1.0), survivals=(0.0, 0.6), nodes=9),
)
FROZEN = frozen_table(
    np.random.default_rng(0).integers(0, 24, 400), leader_tokens=1, follower_tokens=2, leaders=20, followers=4
)
POLICIES: list[TreePolicy] = [
    ChainPolicy(length=4),
    StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 2, 0, 1, 0))),
    LookupPolicy(length=4),
    SuffixPolicy(),
    SuffixPolicy(length=6, factor=1, min_match=2, occurrence="last"),
    SuffixTreePolicy(factor=4, offset=1, least_chance=0.05),
    SuffixTreePolicy(nodes=8),
    CachebackPolicy(nodes=16, max_depth=9),
    CachebackPolicy(leader_tokens=2, follower_tokens=2, leaders=9, followers=3, nodes=12, chances=(0.5, 0.3, 0.1) * 6),
    CachebackPolicy(leader_tokens=1, follower_tokens=2, followers=3, nodes=14, frozen=FROZEN),
    CachebackPolicy(leader_tokens=1, follower_tokens=2, nodes=9, chances=(0.6, 0.3, 0.2, 0.1) * 18, frozen=FROZEN),
    HybridPolicy(text=SuffixPolicy(length=5, min_match=2, occurrence="last"), model=ChainPolicy(length=3)),
    HybridPolicy(
        text=SuffixPolicy(length=4, min_match=1),
        model=StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))),
    ),
    HybridPolicy(text=SuffixPolicy(min_match=3), model=Eagle2Policy(verify_tokens=8, depth=2, top_k=3)),
    HybridPolicy(text=SuffixTreePolicy(nodes=9, factor=4, min_match=2), model=ChainPolicy(length=3)),
    HybridPolicy(
        text=SuffixTreePolicy(nodes=6, factor=4, least_score=2.0), model=Eagle2Policy(verify_tokens=8, depth=2, top_k=3)
    ),
    Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
    Eagle2Policy(verify_tokens=60, depth=4, top_k=10),
    CAST,
    replace(CAST, survival=SURVIVAL),
    ConfidentChainPolicy(length=8, confidence=0.35),
    ConfidentChainPolicy(length=4, confidence=0.25),
    TalonPolicy(nodes=16, gate=0.25, top_k=4, children=12),
    TalonPolicy(nodes=24, gate=0.6, top_k=3, children=5, max_depth=4),
    OptTreePolicy(nodes=14, least_gain=0.3, max_depth=6, children=12),
    OptTreePolicy(nodes=9, least_gain=0.15, max_depth=5, children=6),
]


@cache
def recorded() -> tuple[Family, list[Request], Recording]:
    """A target and a drafter that often agrees: the target's own weights, a little perturbed."""
    weights = tiny_llama(layers=2, seed=1)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    family = Family(target=tiny_lean(layers=2, seed=1), drafters={"small": LeanModel(weights)})
    source = random.Random(0)
    requests = [
        Request(prompt=tuple(source.randrange(24) for _ in range(4 + i % 5)), max_new_tokens=14 + 3 * (i % 3))
        for i in range(7)
    ]
    recorder = Recorder(family.drafters["small"], RECIPE, longest=40)
    found = zip(requests, continuations(family.target, requests), strict=True)
    trace = AcceptanceTrace(
        target="large",
        drafter="small",
        drafter_name="small",
        workload="random",
        temperature=0.0,
        seed=0,
        children=RECIPE.children,
        prefix_exact=True,
        prompts=tuple(recorder.record(request, continuation) for request, continuation in found),
    )
    return family, requests, recording_of(trace)


def decoded(policy: TreePolicy, batch: int) -> list[StepOutput]:
    family, requests, _ = recorded()
    setup = StepConfig(policy=policy, drafter=LOOKUP if isinstance(policy, TextPolicy) else "small")
    room = room_for(requests, [setup], batch)
    decoder = family.decoder(always(setup), names=[str(setup.drafter)], batch=batch, capacity=room)
    run = decode_timed(decoder, requests, batch, keeps_full=True)
    return [timed.round for timed in run.rounds]


def replayed(policy: TreePolicy, recording: Recording, batch: int) -> Replay:
    match policy:
        case LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            return replay_results(policy.results_in(recording.texts), recording.rows, batch)
        case HybridPolicy():
            both = policy.text.results_in(recording.texts), results_of(policy.model, recording)
            return replay_results(hybrid_results(*both), recording.rows, batch)
        case Eagle2Policy():
            trees = eagle2_results(recording, policy.top_k, [policy.depth], [policy.verify_tokens])
            return replay_results(next(trees)[1], recording.rows, batch)
        case ChainPolicy() | StaticPolicy():
            return replay_results(results_of(policy, recording), recording.rows, batch)
    return replay_grown(policy, recording, batch)


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.code)
def test_replay_runs_the_very_rounds_the_decoder_runs(policy: TreePolicy, batch: int) -> None:
    replay, rounds = replayed(policy, recorded()[2], batch), decoded(policy, batch)
    assert replay.censored == 0
    assert replay.kept.tolist() == [one.kept for one in rounds]
    texts = [[index if index < len(recorded()[1]) else NOBODY for index in one.sequences] for one in rounds]
    assert replay.texts.tolist() == texts
    assert replay.nodes.tolist() == [one.verify_tokens for one in rounds]
    assert replay.contexts.tolist() == [one.context for one in rounds]
    assert [tuple(width for width in row if width) for row in replay.widths.tolist()] == [one.widths for one in rounds]
    assert isinstance(policy, TextPolicy) or replay.catch_up.tolist() == [one.uncached for one in rounds]
