"""Stacks of drafters: whatever they draft, the output is the target's own, and nothing fails on the way."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

import pytest

from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always, draft_room
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import Run, random_requests, run
from ..support.pairwise import crossed
from ..support.stack_family import MODELS, STACKS, TARGET, with_siblings
from ..support.tiny_models import perturbed, tiny_gpt2, tiny_llama, tiny_neox

pytestmark = pytest.mark.lossless


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    """Decode one sequence at a time, one token at a time."""
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


def decoded(
    policy: StackPolicy,
    requests: Many[Request],
    slots: int = 3,
    models: Mapping[str, CausalModel] = MODELS,
    target: CausalModel = TARGET,
) -> Run:
    """Decode with a stack in the room that a round needs and no more; nothing may fail on the way."""
    setup = StepConfig(policy=policy, drafter=stack_name(policy))
    capacity = max(len(r.prompt) + r.max_new_tokens for r in requests) + draft_room([setup], slots)
    drafters = {stack_name(policy): stack_drafter(policy, models, slots=slots, capacity=capacity)}
    done = run(target, requests, always(setup), drafters, slots=slots, capacity=capacity)
    assert [one.faults for one in done.rounds] == [()] * len(done.rounds)
    assert max(one.verify_tokens for one in done.rounds) <= policy.max_verify_tokens
    return done


@crossed(name=STACKS, siblings=(0, 2), slots=(1, 3), temperature=(0.0, 0.8))
def test_output_is_the_targets_own(name: str, siblings: int, slots: int, temperature: float) -> None:
    requests = random_requests(7, tokens=14, temperature=temperature)
    assert decoded(with_siblings(name, siblings), requests, slots).outputs == plain(temperature)


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_garbage_at_any_level_changes_no_output(place: int, temperature: float) -> None:
    policy = with_siblings("4 models", 1)
    models = {**MODELS, policy.drafters[place]: LeanModel(tiny_llama(layers=1, seed=9))}
    requests = random_requests(7, tokens=14, temperature=temperature)
    assert decoded(policy, requests, models=models).outputs == plain(temperature)


@pytest.mark.parametrize("name", ["2 models over lookup", "3 models"])
def test_requests_with_and_without_a_penalty_share_a_batch(name: str) -> None:
    requests = [
        replace(request, repetition_penalty=1.0 + 0.3 * (place % 3), top_k=5 * (place % 2))
        for place, request in enumerate(random_requests(7, tokens=14, temperature=0.7))
    ]
    assert decoded(with_siblings(name, 1), requests).outputs == run(TARGET, requests, slots=1).outputs


def test_a_generic_family_stacks_too() -> None:
    neox = tiny_neox(layers=2, seed=0)
    target = GenericModel(neox)
    models = {name: GenericModel(perturbed(neox, spread)) for name, spread in (("medium", 0.05), ("small", 0.1))}
    requests = random_requests(4, tokens=14, temperature=0.8)
    done = decoded(with_siblings("3 models over lookup", 2), requests, models=models, target=target)
    assert done.outputs == run(target, requests).outputs


def test_drafts_may_reach_beyond_a_table_of_positions_that_ends() -> None:
    gpt2 = tiny_gpt2(seed=0, positions=16)
    target = GenericModel(gpt2)
    models = {name: GenericModel(perturbed(gpt2, 0.05)) for name in ("medium", "small")}
    requests = [Request(prompt=(5, 1, 9), max_new_tokens=13), Request(prompt=(5,), max_new_tokens=15)]
    done = decoded(STACKS["3 models"], requests, models=models, target=target)
    assert done.outputs == run(target, requests).outputs


def handed_up(lengths: Many[int]) -> int:
    """Return how many tokens a level hands up where nothing is ever rejected."""
    if len(lengths) == 1:
        return lengths[0]
    per_forward = handed_up(lengths[1:]) + 1
    return per_forward * -(-lengths[0] // per_forward)


@pytest.mark.thinned
@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("lengths", [(4,), (4, 2), (7, 2), (5, 3, 2), (6, 6, 1)])
def test_a_stack_of_the_target_itself_is_accepted_whole(lengths: tuple[int, ...], penalty: float) -> None:
    names = ("medium", "small", "tiny")[: len(lengths)]
    policy = StackPolicy(drafters=names, lengths=lengths)
    request = Request(prompt=(5, 1, 9), max_new_tokens=41, repetition_penalty=penalty)
    rounds = decoded(policy, [request], 1, dict.fromkeys(names, TARGET)).rounds[:-1]
    assert {one.kept[0] for one in rounds} == {one.verify_tokens for one in rounds} == {handed_up(lengths) + 1}


def test_a_sequence_that_lags_far_behind_overwrites_no_neighbour() -> None:
    """The first sequence decodes plainly for long, then a long prompt joins and both draft, in tight caches."""
    policy = STACKS["3 models"]
    requests = [
        Request(prompt=(1, 2), max_new_tokens=60),
        Request(prompt=(3,), max_new_tokens=40),
        Request(prompt=tuple(range(20)) * 3, max_new_tokens=8),
    ]
    setup = StepConfig(policy=policy, drafter=stack_name(policy))

    def schedule(batch: int, context: int) -> StepConfig:
        return setup if context >= 60 else PLAIN

    capacity = 68 + draft_room([setup], 2)
    drafters = {stack_name(policy): stack_drafter(policy, MODELS, slots=2, capacity=capacity)}
    done = run(TARGET, requests, schedule, drafters, slots=2, capacity=capacity)
    assert done.outputs == run(TARGET, requests).outputs
    assert max(one.uncached for one in done.rounds) > 30
    assert not any(one.faults for one in done.rounds)


def test_the_drafters_here_are_sometimes_right_and_sometimes_wrong() -> None:
    done = decoded(STACKS["4 models"], random_requests(7, tokens=14), 1)
    assert len({one.kept[0] for one in done.rounds}) > 4
    assert len({one.widths for one in done.rounds}) > 8
