"""Decoding in the regime of CUDA graphs emits the same text in the same rounds, whole drafts captured or not."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
import torch

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import LATE, MOST_CAPTURED, widths_on_gpu
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import Schedule, StepConfig, always, draft_room
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.growth.captured import CapturedGrowth
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime

from ..support.decoded_runs import CAPACITY, POLICIES, Run, drafting, random_requests, run
from ..support.pairwise import crossed
from ..support.repeated import Repeating, graphed
from ..support.tiny_models import perturbed, tiny_llama, tiny_neox

pytestmark = pytest.mark.lossless

LLAMA, NEOX = tiny_llama(layers=2, seed=0), tiny_neox(layers=2, seed=0)
PAIRS: dict[str, tuple[CausalModel, CausalModel]] = {
    "llama": (LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.06))),
    "neox": (GenericModel(NEOX), GenericModel(perturbed(NEOX, 0.1))),
}
KINDS = [kind for kind in POLICIES if kind != "lookup"]
WHOLE = [kind for kind in KINDS if POLICIES[kind].is_of_one_size or POLICIES[kind].is_captured_whole]


def decoded(
    kind: str, requests: Many[Request], *, is_captured: bool, slots: int = 3, family: str = "llama"
) -> tuple[Run, Repeating]:
    """Decode requests, in both cases with trees that grow as tensors; return what the drafter recorded, too."""
    (target, model), recorder = PAIRS[family], Repeating()
    if is_captured:
        target, _ = graphed(target)
        model, recorder = graphed(model)
    drafter = ModelDrafter(model, slots=slots, capacity=CAPACITY, on_device=True)
    schedule, drafters = drafting(kind, drafter)
    return run(target, requests, schedule, drafters, slots=slots), recorder


def assert_same(kind: str, requests: Many[Request], *, slots: int = 3, family: str = "llama") -> Repeating:
    (eager, _), (captured, recorder) = (
        decoded(kind, requests, is_captured=way, slots=slots, family=family) for way in (False, True)
    )
    assert captured.outputs == eager.outputs == run(PAIRS[family][0], requests).outputs
    is_whole = not any(one.penalises for one in requests)  # whole drafts are recorded
    most = POLICIES[kind].score_widths if is_whole else ()
    told = [(one.kept, one.verify_tokens, one.widths) for one in captured.rounds]
    assert told == [(one.kept, one.verify_tokens, most or one.widths) for one in eager.rounds]
    return recorder


@crossed(kind=KINDS, slots=(1, 3), temperature=(0.0, 0.8), penalty=(1.0, 1.2))
def test_the_text_and_the_rounds_are_those_of_eager_forwards(
    kind: str, slots: int, temperature: float, penalty: float
) -> None:
    requests = random_requests(4, tokens=10, temperature=temperature)
    assert_same(kind, [replace(one, repetition_penalty=penalty) for one in requests], slots=slots)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_takes_masks_is_captured_alike(kind: str) -> None:
    assert_same(kind, random_requests(4, tokens=16), family="neox")


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_draft_is_one_replay(kind: str) -> None:
    requests = random_requests(5, tokens=16)
    recorder = assert_same(kind, requests)
    rounds = decoded(kind, requests, is_captured=True)[0].rounds
    lost = sum(bool(one.finished) for one in rounds)  # a draft ahead of each, at most, is of a batch that is no more
    assert len(rounds) <= sum(work.replays for work in recorder.recorded) <= len(rounds) + lost
    assert len(recorder.recorded) < len(rounds) / 2


@pytest.mark.thinned
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    "policy",
    [
        TalonPolicy(nodes=24, gate=0.03, top_k=6, children=6, max_depth=5),
        TalonPolicy(nodes=8, gate=0.01, top_k=2, children=2, max_depth=3),
        OptTreePolicy(nodes=9, least_gain=0.0, max_depth=4, children=4),
    ],
)
def test_a_whole_draft_asks_for_no_more_room_than_a_cache_is_made_with(policy: TreePolicy, slots: int) -> None:
    setup, requests = StepConfig(policy=policy, drafter="it"), random_requests(5, tokens=24)
    longest = max(len(one.prompt) + one.max_new_tokens for one in requests)
    capacity = longest + draft_room([setup], slots)
    target, model = (graphed(PAIRS["llama"][place])[0] for place in range(2))
    drafter = ModelDrafter(model, slots=slots, capacity=capacity, on_device=True)
    found = run(target, requests, always(setup), {"it": drafter}, slots=slots, capacity=capacity)
    assert found.outputs == run(PAIRS["llama"][0], requests).outputs
    assert any(one.widths for one in found.rounds)


def test_a_draft_of_many_forwards_is_not_captured_whole() -> None:
    deep = TalonPolicy(nodes=60, gate=0.03, top_k=10, children=10, max_depth=MOST_CAPTURED + 1)
    for policy in (deep, replace(deep, max_depth=MOST_CAPTURED)):
        growth = CapturedGrowth(graphed(PAIRS["llama"][1])[0], PAIRS["llama"][1].new_cache(1, 64), lambda seen: seen)
        assert growth.serves(policy, random_requests(1, tokens=1)) == (policy is not deep)
        widths = widths_on_gpu(policy, np.array([[1, 10, 0]]), is_captured=True)
        assert (widths > 0).sum() == (2 + LATE if policy is deep else MOST_CAPTURED)


def test_a_stack_decodes_captured_as_it_does_eagerly() -> None:
    policy, requests = StackPolicy(drafters=("large", "small"), lengths=(4, 2)), random_requests(4, tokens=16)
    outputs = []
    for is_captured in (False, True):
        target, large = PAIRS["llama"]
        models = {"large": large, "small": LeanModel(perturbed(LLAMA, 0.1))}
        if is_captured:
            target, models = graphed(target)[0], {name: graphed(model)[0] for name, model in models.items()}
        drafter = stack_drafter(policy, models, slots=2, capacity=CAPACITY)
        setup = StepConfig(policy=policy, drafter="stack")
        outputs.append(run(target, requests, always(setup), {"stack": drafter}, slots=2).outputs)
    assert outputs[0] == outputs[1] == run(PAIRS["llama"][0], requests).outputs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_graphs_and_kernels_decode_the_same_and_wait_for_results_alone(kind: str, slots: int) -> None:
    requests = random_requests(6, tokens=24)
    target, model = (in_regime(on_gpu(scale), "cuda-graph") for scale in (0.0, 0.06))
    assert target.attention == "tree"
    schedule, drafters = drafting(kind, ModelDrafter(model, slots=slots, capacity=CAPACITY))
    run(target, requests, schedule, drafters, slots=slots)  # every shape is captured
    try:
        again = run_rounds(target, requests, schedule, drafters, slots=slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert again == run(on_gpu(0.0), requests).outputs


def on_gpu(scale: float) -> LeanModel:
    llama = tiny_llama(layers=2, seed=0, hidden=64)  # with heads that the kernels take
    return LeanModel((perturbed(llama, scale) if scale else llama).float().cuda())


def run_rounds(
    target: CausalModel, requests: Many[Request], schedule: Schedule, drafters: Mapping[str, Drafter], *, slots: int
) -> list[tuple[int, ...]]:
    """Decode, but let prompts wait for the device as they like."""
    decoder = Engine(target, drafters, schedule, slots=slots, capacity=CAPACITY)
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in requests]
    while True:
        torch.cuda.set_sync_debug_mode("default")
        if not scheduler.schedule():
            return [tuple(s.emitted) for s in sequences_of(states)]
        torch.cuda.set_sync_debug_mode("error")
        decoder.step()
