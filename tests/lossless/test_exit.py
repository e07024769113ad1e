"""Exits change no output though they write into the target's cache; their trees replay; tests could fail."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.lockstep import replay_results
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import RecordedScorer, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow, results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace, PromptTrace
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import ExitDrafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.exit import DOWN, ExitModel
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ..support.decoded_runs import BUSHY, CAPACITY, PADDED, POLICIES, Run, in_slots, random_requests, run
from ..support.pairwise import crossed
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=4, seed=0)
TARGET = LeanModel(LLAMA)
EXIT = tiny_exit(TARGET, exit_weights(32), 2)
RECIPE = Recipe(children=4, trees=tuple(Eagle2Policy(top_k=width, depth=4) for width in (1, 3, 4)))
TREES = [name for name in POLICIES if name != "lookup"]


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


def drafted(
    policy: TreePolicy, temperature: float = 0.0, *, model: ExitModel = EXIT, on_device: bool | None = None
) -> Run:
    drafters = {"it": ExitDrafter(model, slots=3, capacity=CAPACITY, on_device=on_device)}
    requests = random_requests(7, tokens=14, temperature=temperature)
    return run(TARGET, requests, always(StepConfig(policy=policy, drafter="it")), drafters)


@crossed(kind=TREES, temperature=(0.0, 0.8), on_device=(False, True))
def test_trees_on_an_exit_change_no_output(kind: str, temperature: float, on_device: bool) -> None:
    """T1, and T2 by the draws being fixed; and T8: what is emitted is what was accepted and one token a round."""
    found = drafted(POLICIES[kind], temperature, on_device=on_device)
    assert found.outputs == plain(temperature)
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)


def test_a_network_of_noise_changes_no_output() -> None:
    """T3."""
    noise = tiny_exit(TARGET, exit_weights(32, seed=3, scale=30.0), 1)
    found = drafted(POLICIES["eagle2"], model=noise)
    assert found.outputs == plain(0.0) and all(kept >= 1 for done in found.rounds for kept in done.kept)


def test_an_exit_whose_target_adds_nothing_behind_it_is_always_right() -> None:
    """T4: layers that write nothing into the stream leave the exit's state as it is."""
    source = tiny_llama(layers=4, seed=0)
    with torch.no_grad():
        for layer in source.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    target, weights = LeanModel(source), exit_weights(32)
    weights[DOWN] = torch.zeros_like(weights[DOWN])
    requests = [r for r in random_requests(44, tokens=17) if r.max_new_tokens == 17]
    drafters = {"it": ExitDrafter(tiny_exit(target, weights, 2), slots=3, capacity=CAPACITY)}
    found = run(target, requests, always(StepConfig(policy=ChainPolicy(length=3), drafter="it")), drafters)
    assert len(requests) == 11 and {kept for done in found.rounds for kept in done.kept} == {4}


@pytest.mark.parametrize("kind", TREES)
def test_after_every_round_the_shared_cache_is_a_fresh_prefill(kind: str) -> None:
    """T5: what is drafted is written behind the committed text alone, and nothing of it stays."""
    schedule = always(StepConfig(policy=POLICIES[kind], drafter="it", run_tokens=PADDED))
    seen: list[tuple[int, Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, sequence in in_slots(decoder):
            seen.append((sequence.index, decoder._cache.states[:, slot, : sequence.context].clone()))

    requests = random_requests(7, tokens=12, temperature=0.8)
    drafters = {"it": ExitDrafter(EXIT, slots=3, capacity=CAPACITY)}
    done = run(TARGET, requests, schedule, drafters, watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    worst = max(float((states - prefill(texts[index], states.shape[1])).abs().max()) for index, states in seen)
    assert len(seen) > 20 and worst < 1e-9


def prefill(text: Many[int], count: int) -> Tensor:
    """Return (layers, count, width): keys and values of a text's first tokens, as transformers computes them."""
    with torch.no_grad():
        kept = LLAMA(torch.tensor([list(text[:count])]), use_cache=True).past_key_values
    pairs = [torch.cat((layer.keys[0], layer.values[0]), dim=0) for layer in kept.layers]
    return torch.stack([pair.transpose(0, 1).flatten(1) for pair in pairs])


def test_texts_that_stop_or_begin_with_one_token_end_where_the_target_ends_them() -> None:
    """T7: a stop token inside a draft, and no room for a whole draft."""
    stop = frozenset({plain(0.0)[2][5]})
    requests = [
        Request(prompt=(index % 24,), max_new_tokens=1 + 3 * index, stop=stop, seed=index) for index in range(5)
    ]
    drafters = {"it": ExitDrafter(EXIT, slots=3, capacity=CAPACITY)}
    found = run(TARGET, requests, always(StepConfig(policy=POLICIES["eagle2"], drafter="it")), drafters)
    assert found.outputs == run(TARGET, requests, slots=1).outputs


def test_the_same_run_counts_the_same() -> None:
    """T9."""
    one, other = (drafted(POLICIES["talon"], 0.8) for _ in range(2))
    assert one.outputs == other.outputs
    assert [(done.kept, done.widths) for done in one.rounds] == [(done.kept, done.widths) for done in other.rounds]


def test_a_hybrid_on_an_exit_changes_no_output() -> None:
    policy = HybridPolicy(text=SuffixPolicy(length=4, min_match=2), model=ChainPolicy(length=3))
    drafters = {"it": HybridDrafter(ExitDrafter(EXIT, slots=3, capacity=CAPACITY))}
    requests = random_requests(7, tokens=40)
    found = run(TARGET, requests, always(StepConfig(policy=policy, drafter="it")), drafters)
    assert found.outputs == run(TARGET, requests).outputs
    assert len({bool(done.widths) for done in found.rounds}) == 2, "rounds with and without the exit"


class Trespasser(ExitDrafter):
    """Writes every token one place too far left: the newest over the committed one before it."""

    def feed(self, step: ForwardInput) -> Tensor:
        return super().feed(replace(step, columns=step.columns - 1))


def test_an_exit_that_wrote_into_the_committed_text_would_change_outputs() -> None:
    """The control: the shared cache matters, and these tests see it."""
    requests = random_requests(7, tokens=14)
    drafters = {"it": Trespasser(EXIT, slots=1, capacity=CAPACITY)}
    schedule = always(StepConfig(policy=ChainPolicy(length=3), drafter="it"))
    assert run(TARGET, requests, schedule, drafters, slots=1).outputs != run(TARGET, requests, slots=1).outputs


class Keeping(ExitDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self) -> None:
        super().__init__(EXIT, slots=1, capacity=CAPACITY)
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
def recorded(temperature: float, model: ExitModel = EXIT) -> tuple[PromptTrace, ...]:
    return record_prompts(model, texts(temperature), RECIPE)


REPLAYED: tuple[TreePolicy, ...] = (
    ChainPolicy(length=5),
    ConfidentChainPolicy(length=5, confidence=0.2),
    StaticPolicy(tree=BUSHY),
    Eagle2Policy(verify_tokens=7, depth=3, top_k=3),
)


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", REPLAYED, ids=str)
def test_a_replay_draws_the_trees_that_decoding_drew(policy: TreePolicy, temperature: float) -> None:
    compared = 0
    for (request, text), prompt in zip(texts(temperature), recorded(temperature), strict=True):
        drafter, recording = Keeping(), recording_of(trace_of((prompt,), temperature))
        assert decoded_alone(drafter, request, policy) == text
        results = results_of(policy, recording)
        for length, live in drafter.drawn.items():
            place = length - len(request.prompt) - 1
            scorer = RecordedScorer(recording, np.array([place]))
            replayed = grow(policy, scorer, 1)
            assert not scorer.censored.any()
            assert replayed.parents.tolist() == live.parents.tolist() and replayed.widths == live.widths
            truth = [*text[length - len(request.prompt) :], *([-2] * 9)]
            assert replayed.tokens[0, 1:].sum() == accepted(live, truth) == results.accepted[place]
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("policy", REPLAYED, ids=str)
def test_a_replay_counts_the_rounds_that_decoding_runs(policy: TreePolicy) -> None:
    recording = recording_of(trace_of(recorded(0.0), 0.0))
    replay = replay_results(results_of(policy, recording), recording.rows, 1)
    drafters = {"it": ExitDrafter(EXIT, slots=1, capacity=CAPACITY)}
    asked = [request for request, _ in texts(0.0)]
    live = run(TARGET, asked, always(StepConfig(policy=policy, drafter="it")), drafters, slots=1)
    assert replay.kept[:, 0].tolist() == [done.kept[0] for done in live.rounds]
    assert [tuple(w for w in row if w) for row in replay.widths.tolist()] == [done.widths for done in live.rounds]


def test_a_recording_of_another_exit_replays_otherwise() -> None:
    """The control of the replays."""
    other = recorded(0.0, tiny_exit(TARGET, exit_weights(32), 1))
    counts = [
        results_of(ChainPolicy(length=5), recording_of(trace_of(prompts, 0.0))).accepted.tolist()
        for prompts in (recorded(0.0), other)
    ]
    assert counts[0] != counts[1]


def decoded_alone(drafter: ExitDrafter, request: Request, policy: TreePolicy) -> tuple[int, ...]:
    schedule = always(StepConfig(policy=policy, drafter="it"))
    decoder = Engine(TARGET, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
    sequence = decoder.admit(request)
    while decoder.running:
        assert not decoder.step().faults
    return tuple(sequence.emitted)


def trace_of(prompts: tuple[PromptTrace, ...], temperature: float) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="t", drafter="d", drafter_name="d", workload="w", temperature=temperature, seed=0,
        children=prompts[0].children, prefix_exact=True, prompts=prompts,
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
