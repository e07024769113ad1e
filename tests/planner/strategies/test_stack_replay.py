"""Replay of stacks: tokens per round and forwards against the decoder itself, and against the exact formula."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.hierarchy.latency import exact_latency
from spectune.planner.hierarchy.records import Hierarchy, HierarchyInputs, Level, ModelCosts
from spectune.planner.kernels.slots import NOBODY
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import Recording, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.stack_replay import StackReplay, agreement_of, replay_stack
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.engine.step_output import StepOutput
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import Recorder

from ...support.chain_traces import rooted, trace_of
from ...support.decoded_runs import random_requests, run
from ...support.pairwise import crossed
from ...support.stack_family import MODELS, STACKS, TARGET, stacked, with_siblings


@cache
def recorded(temperature: float) -> tuple[list[Request], dict[str, Recording]]:
    """Return requests, and what every drafter would say along the target's continuations of them."""
    requests = random_requests(6, tokens=18, temperature=temperature)
    texts = list(zip(requests, continuations(TARGET, requests), strict=True))
    found = {}
    for name, model in MODELS.items():
        recorder = Recorder(model, Recipe(children=4), longest=60)
        trace = AcceptanceTrace(
            target="large", drafter=name, drafter_name=name, workload="random", temperature=temperature, seed=0,
            children=4, prefix_exact=True, prompts=tuple(recorder.record(*text, positions=()) for text in texts),
        )  # fmt: skip
        found[name] = recording_of(trace)
    return requests, found


class Watching(Drafter):
    """A drafter whose drafts are kept."""

    forwards = 0

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.drafts: list[DraftBatch] = []

    def admit(self, slot: int, sequence: Sequence, held: int = 0) -> None:
        self.drafter.admit(slot, sequence, held)

    def move(self, source: int, target: int) -> None:
        self.drafter.move(source, target)

    def uncached(self, sequences: Many[Sequence]) -> int:
        return self.drafter.uncached(sequences)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        self.drafts.append(self.drafter.draft(sequences, policy))
        return self.drafts[-1]


@dataclass(frozen=True)
class Decoded:
    """The rounds of a run whose slots were kept busy, and the drafts of each."""

    rounds: list[StepOutput]
    drafts: list[DraftBatch]


def decoded(policy: StackPolicy, batch: int, temperature: float) -> Decoded:
    schedule, drafters = stacked(policy, batch)
    ((name, drafter),) = drafters.items()
    watching = Watching(drafter)
    done = run(TARGET, recorded(temperature)[0], schedule, {name: watching}, slots=batch, keeps_full=True)
    assert not any(one.faults for one in done.rounds)
    return Decoded(list(done.rounds), watching.drafts)


def replayed(policy: StackPolicy, batch: int, temperature: float, seed: int = 0) -> StackReplay:
    recordings = recorded(temperature)[1]
    chances = [0.5] * (len(policy.drafters) - 1)
    return replay_stack(policy, recordings, batch, agreement=chances, generator=np.random.default_rng(seed))


@crossed(name=STACKS, siblings=(0, 2), batch=(1, 3), temperature=(0.0, 0.8))
def test_replay_emits_the_very_tokens_per_round_that_the_decoder_emits(
    name: str, siblings: int, batch: int, temperature: float
) -> None:
    policy = with_siblings(name, siblings)
    replay, rounds = replayed(policy, batch, temperature).replay, decoded(policy, batch, temperature).rounds
    assert replay.kept.tolist() == [one.kept for one in rounds]
    assert replay.contexts.tolist() == [one.context for one in rounds]
    assert replay.catch_up.tolist() == [one.uncached for one in rounds]
    texts = len(recorded(temperature)[0])
    assert replay.texts.tolist() == [[index if index < texts else NOBODY for index in one.sequences] for one in rounds]


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", STACKS)
def test_what_no_toss_came_before_is_what_the_decoder_ran(name: str, batch: int) -> None:
    policy = with_siblings(name, 1)
    replay, done = replayed(policy, batch, 0.0), decoded(policy, batch, 0.0)
    exact = 0
    for row, (one, draft) in enumerate(zip(done.rounds, done.drafts, strict=True)):
        sure = int((~replay.is_modelled[row, :-1] & (replay.levels[row] >= 0)).sum())
        exact += sure
        assert replay.levels[row, :sure].tolist() == list(draft.levels[:sure])
        assert replay.replay.widths[row, :sure].tolist() == list(draft.widths[:sure])
        if not replay.is_modelled[row, -1]:
            assert replay.replay.nodes[row] == one.verify_tokens
            assert sure == len(draft.widths)
    assert exact > 5


def test_stacks_without_a_verifying_drafter_replay_wholly() -> None:
    assert not replayed(STACKS["2 models"], 3, 0.0).is_modelled.any()


def test_tosses_change_no_token() -> None:
    policy = with_siblings("4 models", 2)
    first, second = (replayed(policy, 3, 0.8, seed) for seed in (1, 2))
    assert first.replay.kept.tolist() == second.replay.kept.tolist()
    assert first.replay.widths.tolist() != second.replay.widths.tolist()


def test_the_same_generator_tosses_the_same() -> None:
    first, second = (replayed(STACKS["4 models"], 1, 0.0, 7) for _ in range(2))
    assert first.levels.tolist() == second.levels.tolist()


def test_forwards_of_a_level_are_counted_by_round() -> None:
    replay = replayed(STACKS["3 models"], 1, 0.0)
    first, second = ((replay.levels == level).sum(axis=1) for level in (0, 1))
    assert (first + second == (replay.replay.widths > 0).sum(axis=1)).all()
    assert 0.0 < replay.modelled_share(1) < 1.0
    assert (second == 2 * first).all()  # the lowest drafts two tokens a call


def synthetic(chances: dict[str, float], positions: int, seed: int) -> dict[str, Recording]:
    """Return one long text along which each model is right with a chance of its own, whatever came before."""
    rng = np.random.default_rng(seed)
    ranks = {name: (rng.random(positions) >= chance).astype(int).tolist() for name, chance in chances.items()}
    return {name: recording_of(trace_of(rooted(rank), prefix_exact=True)) for name, rank in ranks.items()}


@pytest.mark.parametrize("lengths", [(1, 1), (4, 2), (5, 5), (2, 6), (9, 3)])
def test_forwards_per_token_are_those_of_the_exact_formula(lengths: tuple[int, int]) -> None:
    """Where the first drafter never leaves the text, tokens of the second are accepted independently."""
    policy = StackPolicy(drafters=("medium", "small"), lengths=lengths)
    recordings = synthetic({"medium": 1.0, "small": 0.7}, 30_000, seed=3)
    replay = replay_stack(policy, recordings, 1, agreement=(0.7,), generator=np.random.default_rng(0))
    models = tuple(ModelCosts(name=name, forward_ms=(0.0, *[1.0] * 40)) for name in ("small", "medium", "target"))
    inputs = HierarchyInputs(models=models, acceptance=((), (0.7,), (0.7, 1.0)))
    levels = (Level(name="small", threshold=lengths[1]), Level(name="medium", threshold=lengths[0]))
    predicted = exact_latency(inputs, Hierarchy(levels=levels))
    assert replay.replay.tokens_per_round == pytest.approx(predicted.tokens_per_round, rel=0.02)
    for level, share in ((1, predicted.levels[0]), (0, predicted.levels[1])):
        per_token = (replay.levels == level).sum() / replay.replay.tokens
        assert per_token == pytest.approx(share.forwards_per_token, rel=0.02)


def test_agreement_between_models_is_that_of_their_first_choices() -> None:
    greedy = ((1.0, 0.8, 0.3), (0.8, 1.0, 0.6), (0.3, 0.6, 1.0))
    pairwise = PairwiseAcceptance(models=("small", "medium", "tiny"), greedy=greedy, overlap=greedy, positions=9)
    assert agreement_of(STACKS["4 models"], recorded(0.0)[1], pairwise) == (0.8, 0.3)


def test_agreement_with_a_lookup_is_how_often_both_are_right() -> None:
    """Tokens 0 0 1 2 3 ... never recur but for the first; so make a text that repeats: 5 6 5 6 5 6."""
    trace = rooted([0, 0, 1, 0, 0])
    looping = replace(trace, prompt=(5, 6), continuation=(5, 6, 5, 6, 5, 6))
    recordings = {"medium": recording_of(trace_of(looping, prefix_exact=True))}
    (chance,) = agreement_of(StackPolicy(drafters=("medium", "lookup"), lengths=(2, 2)), recordings)
    assert chance == pytest.approx(4 / 5)  # the text is copied at all five positions, the model is wrong at one


@pytest.mark.parametrize(
    ("name", "known", "chances", "complaint"),
    [
        ("3 models", ("medium",), (0.5,), "needs recordings of small"),
        ("3 models", ("medium", "small"), (), "needs a chance for each level but the lowest"),
        ("3 models", ("medium", "small"), (1.5,), "needs a chance for each level but the lowest"),
    ],
)
def test_what_a_replay_lacks_is_named(
    name: str, known: tuple[str, ...], chances: tuple[float, ...], complaint: str
) -> None:
    recordings = {key: recorded(0.0)[1][key] for key in known}
    with pytest.raises(PlanError, match=complaint):
        replay_stack(STACKS[name], recordings, 1, agreement=chances, generator=np.random.default_rng(0))


def test_models_recorded_along_different_texts_are_no_stack() -> None:
    recordings = {"medium": recorded(0.0)[1]["medium"], "small": recorded(0.8)[1]["small"]}
    with pytest.raises(PlanError, match="recorded along different texts"):
        replay_stack(STACKS["3 models"], recordings, 1, agreement=(0.5,), generator=np.random.default_rng(0))


def test_more_siblings_than_were_recorded_are_refused() -> None:
    with pytest.raises(PlanError, match="records 4 children"):
        replayed(with_siblings("3 models", 4), 1, 0.0)
