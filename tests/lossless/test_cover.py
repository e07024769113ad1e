"""T1, T3, T4, T5, T7, T8, T9 over a covering set: every two choices of a run meet in at least one of these runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from torch import Tensor

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import ExitDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import StackDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import CAPACITY, PADDED, POLICIES, RecordingDrafter, in_slots, run
from ..support.fresh_states import worst_difference
from ..support.pairwise import covering, some_of
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
MODELS: dict[str, CausalModel] = {
    "good": LeanModel(perturbed(LLAMA, 0.06)),
    "garbage": LeanModel(tiny_llama(layers=1, seed=99)),
    "the target": TARGET,
}
HELPERS = tuple(LeanModel(perturbed(LLAMA, spread, seed=1)) for spread in (0.1, 0.2))  # lower levels of a stack
STACKS: dict[str, TreePolicy] = {
    "stack of 2": StackPolicy(drafters=("it",), lengths=(3,)),
    "stack of 3": StackPolicy(drafters=("it", "b"), lengths=(4, 2), siblings=1),
    "stack of 4": StackPolicy(drafters=("it", "b", "c"), lengths=(4, 3, 2)),
    "stack over text": StackPolicy(drafters=("it", "lookup"), lengths=(4, 3)),
}
EXITS = {
    "good": tiny_exit(TARGET, exit_weights(32), 1),
    "garbage": tiny_exit(TARGET, exit_weights(32, seed=3, scale=30.0), 1),
    "the target": tiny_exit(TARGET, exit_weights(32, scale=0.0), 1),  # its first layer as it is
}
RESUMED: dict[str, TreePolicy] = {"resumed": ResumedPolicy(draft=ChainPolicy(length=3))}
WAYS: dict[str, TreePolicy] = {"plain": PlainPolicy(), **POLICIES, **STACKS, **RESUMED}
CANCELS_EVERY = 4  # rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    policy: str
    batch: int
    temperature: float
    drafter: str
    joining: str
    is_padded: bool


CASES = [
    Case(**row)
    for row in covering(
        {
            "policy": tuple(WAYS),
            "batch": (1, 2, 5),
            "temperature": (0.0, 0.7, 1.3),
            "drafter": tuple(MODELS),
            "joining": ("at once", "staggered", "uneven", "cancelled"),
            "is_padded": (False, True),
        }
    )
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run did."""

    outputs: list[tuple[int, ...]]
    rounds: list[StepOutput]
    cancelled: set[int]
    drafts: list[list[tuple[int, int, set[tuple[int, ...]]]]]  # per round and sequence: index, emitted, paths
    cached: list[tuple[int, Tensor]]  # after every round and sequence: index, states of the target's cache
    target_forwards: int


def wanted(case: Case) -> list[Request]:
    """Return the requests of a run: prompts of 1 to 9 tokens; uneven ones end early, by limit or by a stop token."""
    rng = np.random.default_rng(len(case.joining))
    common = [
        Request(
            prompt=tuple(rng.integers(0, 24, 1 + 2 * index % 9).tolist()),
            max_new_tokens=12,
            temperature=case.temperature,
            seed=index,
        )
        for index in range(7)
    ]
    if case.joining != "uneven":
        return common
    stop = frozenset([3, 14])
    return [replace(request, max_new_tokens=1 + 4 * place, stop=stop) for place, request in enumerate(common)]


def drafter_of(case: Case) -> Drafter:
    """Return what drafts in a run."""
    policy = WAYS[case.policy]
    if case.policy == "lookup":
        return LookupDrafter()
    if isinstance(policy, ResumedPolicy):
        return ExitDrafter(EXITS[case.drafter], slots=case.batch, capacity=CAPACITY)
    if isinstance(policy, StackPolicy):
        models = [MODELS[case.drafter], *HELPERS][: len(policy.models)]
        return StackDrafter(models, slots=case.batch, capacity=CAPACITY)
    return ModelDrafter(MODELS[case.drafter], slots=case.batch, capacity=CAPACITY)


@cache
def played(case: Case, again: bool = False) -> Played:
    """Return what a run did; once more where asked for again."""
    recorder = RecordingDrafter(drafter_of(case))
    name = None if case.policy == "plain" else "it"
    setup = StepConfig(policy=WAYS[case.policy], drafter=name, run_tokens=PADDED if case.is_padded else ())
    decoder = Engine(TARGET, {"it": recorder}, always(setup), slots=case.batch, capacity=CAPACITY)
    requests, sequences, rounds = wanted(case), list[Sequence](), list[StepOutput]()
    cancelled, cached = set[int](), list[tuple[int, Tensor]]()
    while len(sequences) < len(requests) or decoder.running:
        while decoder.has_room and len(sequences) < due(case, decoder, len(rounds), len(sequences), len(requests)):
            sequences.append(decoder.admit(requests[len(sequences)], len(sequences)))
        if not decoder.running:
            continue
        rounds.append(decoder.step())
        cached += [(s.index, decoder._cache.states[:, i, : s.context].clone()) for i, s in in_slots(decoder)]
        if case.joining == "cancelled" and decoder.running and len(rounds) % CANCELS_EVERY == 0:
            cancelled.add(decoder.running[0].index)
            decoder.cancel(decoder.running[0])
    return Played(
        outputs=[tuple(s.emitted) for s in sequences],
        rounds=rounds,
        cancelled=cancelled,
        drafts=recorder.rounds,
        cached=cached,
        target_forwards=decoder.forwards,
    )


def due(case: Case, decoder: Engine, rounds: int, joined: int, count: int) -> int:
    """Return how many requests may have joined by now; staggered ones come every second round, or when none runs."""
    if case.joining != "staggered":
        return count
    return min(count, 1 + rounds // 2 if decoder.running else joined + 1)


@cache
def alone(requests: tuple[Request, ...]) -> list[tuple[int, ...]]:
    """Return what plain decoding makes of each request by itself."""
    return [run(TARGET, [request], slots=1).outputs[0] for request in requests]


def told(case: Case) -> str:
    return f"{case.policy}-{case.batch}-{case.temperature}-{case.drafter}-{case.joining}-{case.is_padded}"


every_case = pytest.mark.parametrize("case", CASES, ids=told)
every_drafting_case = pytest.mark.parametrize("case", [case for case in CASES if case.policy != "plain"], ids=told)


@every_case
def test_the_output_is_what_plain_decoding_alone_emits(case: Case) -> None:
    done = played(case)
    for index, (text, truth) in enumerate(zip(done.outputs, alone(tuple(wanted(case))), strict=True)):
        assert text == (truth[: len(text)] if index in done.cancelled else truth)


@every_case
def test_after_every_round_the_targets_cache_is_a_fresh_prefill(case: Case) -> None:
    done = played(case)
    texts = [(*request.prompt, *output) for request, output in zip(wanted(case), done.outputs, strict=True)]
    assert done.cached and worst_difference(LLAMA, texts, done.cached) < 1e-9


@every_drafting_case
def test_every_round_keeps_the_longest_drafted_path_of_the_truth_and_one_token(case: Case) -> None:
    done, truth = played(case), alone(tuple(wanted(case)))
    for one, drafts in zip(done.rounds, done.drafts, strict=True):
        for kept, (index, emitted, paths) in zip(one.kept, drafts, strict=True):
            rest = truth[index][emitted:]
            accepted = next(n for n in range(len(rest), -1, -1) if rest[:n] in paths)
            assert kept == min(accepted + 1, len(rest))


@every_case
def test_kept_tokens_and_first_tokens_are_all_tokens_and_the_target_ran_once_a_round(case: Case) -> None:
    done = played(case)
    assert sum(sum(one.kept) for one in done.rounds) == sum(len(text) - 1 for text in done.outputs)
    assert done.target_forwards == len(done.rounds)
    assert not [fault for one in done.rounds for fault in one.faults]


@pytest.mark.parametrize("case", some_of(CASES, 4), ids=told)
def test_the_same_run_again_is_the_same_in_every_round(case: Case) -> None:
    first, second = played(case), played(case, again=True)
    assert first.outputs == second.outputs and first.drafts == second.drafts
    assert [one.kept for one in first.rounds] == [one.kept for one in second.rounds]


def test_there_are_cases_of_every_kind() -> None:
    assert {case.policy for case in CASES} == set(WAYS)
    assert any(played(case).cancelled for case in CASES if case.joining == "cancelled")
