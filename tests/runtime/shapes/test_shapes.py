"""What the profiler times: each runner runs the forwards that the decoder runs, at the shape asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from weakref import WeakSet

import numpy as np
import pytest
import torch

from spectune.errors import DeviceError, MeasurementError, ModelError
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.design import AdaptiveDesign
from spectune.profiler.device import detect
from spectune.profiler.domain import Domain
from spectune.profiler.latency import measure
from spectune.profiler.protocols import ShapeRunner
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.forward import TREE_ATTENTION, CausalModel, ForwardInput
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import PREFILL_TOKENS
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.shapes import room_of, runner_of
from spectune.runtime.shapes.forwards import tree_layer, whole_tree

from ...support.kept_visits import KeptVisits
from ...support.repeated import graphed
from ...support.tiny_models import tiny_lean, tiny_llama, tiny_neox

ROLES = ["verify", "draft", "exit:1", "prefill", "loop:3"]


@dataclass
class Witness:
    """A model that keeps a copy of the input of every forward it runs, and its caches."""

    model: LeanModel
    steps: list[ForwardInput] = field(default_factory=list)
    caches: list[KeyValueCache] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dtype, self.device, self.attention = self.model.dtype, self.model.device, self.model.attention
        self.vocabulary, self.longest_context = self.model.vocabulary, self.model.longest_context
        self.regime, self.gallery = self.model.regime, self.model.gallery

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        self.caches.append(self.model.new_cache(slots, capacity))
        return self.caches[-1]

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        own = {name: getattr(step, name).clone() for name in ("tokens", "positions", "columns")}
        self.steps.append(replace(step, **own))
        return self.model.forward(step, cache)


@dataclass
class Cramped(Witness):
    """A model on a device that has memory for the caches of so many tokens."""

    most: int = 0
    alive: WeakSet[KeyValueCache] = field(default_factory=WeakSet)

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        if slots * capacity + sum(cache.slots * cache.capacity for cache in self.alive) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        cache = self.model.new_cache(slots, capacity)
        self.alive.add(cache)
        return cache


def runner(model: CausalModel, role: str, *, slots: int = 3, capacity: int = 200) -> ShapeRunner:
    return runner_of(model, role, identity="model", slots=slots, capacity=capacity)


def steps_of(role: str, batch: int, context: int, tokens: int, vocabulary: int = 24) -> list[ForwardInput]:
    """Return the inputs of the forwards that one call runs."""
    witness = Witness(tiny_lean(layers=2, seed=0, vocabulary=vocabulary))
    call = runner(witness, role, capacity=700).prepare(batch, context, tokens)
    witness.steps.clear()
    call()
    return witness.steps


def decoded_steps(policy: Eagle2Policy, batch: int, prompt: int) -> tuple[list[ForwardInput], list[ForwardInput]]:
    """Return the inputs of one decoder round: the drafter's, the target's."""
    target, drafter = (Witness(tiny_lean(layers=1, seed=seed, vocabulary=64)) for seed in (0, 1))
    drafters = {"small": ModelDrafter(drafter, slots=batch, capacity=200)}
    setup = always(StepConfig(policy=policy, drafter="small"))
    decoder = Engine(target, drafters, setup, slots=batch, capacity=200)
    for _ in range(batch):
        decoder.admit(Request(prompt=tuple(range(prompt)), max_new_tokens=50))
    target.steps.clear()
    drafter.steps.clear()
    decoder.step()
    return drafter.steps, target.steps


def same_shapes(mine: ForwardInput, other: ForwardInput) -> bool:
    """Tell whether two forwards read and write tensors of the same shapes, masks included."""
    shapes = [
        (step.tokens.shape, step.positions.shape, step.columns.shape, None if step.bias is None else step.bias.shape)
        for step in (mine, other)
    ]
    return shapes[0] == shapes[1] and mine.signature == other.signature


@pytest.mark.parametrize("role", ROLES)
def test_a_runner_says_whose_forwards_it_runs_and_how(role: str) -> None:
    found = runner(tiny_lean(layers=2, seed=0), role)
    told = (found.identity, found.role, found.regime, found.dtype, found.attention)
    assert told == ("model", role, "eager", "float64", "sdpa")


def test_transformers_own_forward_keeps_its_regime() -> None:
    assert runner(GenericModel(tiny_llama(layers=1, seed=0)), "verify").regime == "eager-transformers"


@pytest.mark.parametrize("role", ROLES)
def test_a_shape_fits_exactly_into_the_room_of_its_role(role: str) -> None:
    room = room_of(role, 20, 5)
    runner(tiny_lean(layers=2, seed=0), role, capacity=room).prepare(1, 20, 5)()
    with pytest.raises(MeasurementError, match=f"exceeds . slots of {room - 1}"):
        runner(tiny_lean(layers=2, seed=0), role, capacity=room - 1).prepare(1, 20, 5)


@pytest.mark.parametrize("role", ["verify", "draft", "exit:1", "loop:3"])
def test_a_batch_larger_than_the_cache_is_refused(role: str) -> None:
    with pytest.raises(MeasurementError, match=r"batch 4 .* exceeds 3 slots"):
        runner(tiny_lean(layers=2, seed=0), role).prepare(4, 20, 5)


@pytest.mark.parametrize("role", ROLES)
def test_places_behind_the_longest_context_are_refused_before_they_are_run(role: str) -> None:
    longest = tiny_lean(layers=2, seed=0).longest_context
    with pytest.raises(MeasurementError, match=f"longest context of {longest}"):
        runner(tiny_lean(layers=2, seed=0), role, capacity=2 * longest).prepare(1, longest, 2)


@pytest.mark.parametrize("role", ["verify", "draft", "exit:1", "loop:3"])
def test_drafts_behind_the_longest_context_are_timed_as_a_decoder_runs_them(role: str) -> None:
    longest = tiny_lean(layers=2, seed=0).longest_context
    runner(tiny_lean(layers=2, seed=0), role, capacity=2 * longest).prepare(1, longest - 1, 9)()


def test_transformers_own_forward_takes_its_last_position_for_drafts_behind_it() -> None:
    model = GenericModel(tiny_neox(layers=1, seed=0))
    runner(model, "verify", capacity=2 * model.longest_context).prepare(1, model.longest_context - 1, 9)()


@pytest.mark.parametrize("role", ["verify", "draft", "prefill", "loop:3"])
def test_without_memory_for_the_largest_shape_a_smaller_one_runs_and_the_largest_is_refused(role: str) -> None:
    model = Cramped(tiny_lean(layers=1, seed=0), most=500)
    cramped = runner_of(model, role, identity="model", slots=3, capacity=2000)
    cramped.prepare(1, 100, 4)()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        cramped.prepare(3, 480, 4)


def test_without_memory_for_all_shapes_those_that_fit_into_a_cache_share_it() -> None:
    model = Cramped(tiny_lean(layers=1, seed=0), most=1000)
    cramped = runner(model, "verify", capacity=600)
    kept = [cramped.prepare(*shape) for shape in ((3, 20, 4), (1, 10, 8), (2, 200, 4))]
    for call in kept:
        call()
    assert [(cache.slots, cache.capacity) for cache in model.alive] == [(3, 256)]


def test_a_captured_shape_without_memory_for_all_sees_no_more_than_its_own_cache() -> None:
    witness = Cramped(tiny_lean(layers=1, seed=0), most=800)
    model, recorder = graphed(witness)
    model.attention = TREE_ATTENTION  # which looks no further than each text, so that all of a cache is in sight
    shapes = runner_of(model, "verify", "cuda-graph", identity="model", slots=3, capacity=600)
    call = shapes.prepare(3, 200, 4)
    call()
    call()
    assert {step.seen for step in witness.steps} == {256}
    assert [one.replays for one in recorder.recorded] == [2]


def test_a_cache_that_does_not_fit_fails_its_own_cells_and_all_others_are_timed() -> None:
    model = Cramped(tiny_lean(layers=1, seed=0), most=800)  # for three texts of 20 tokens, or for one of 400
    domain = Domain(batches=(1, 3), contexts=(20, 400), most_tokens=8)
    cramped = runner(model, "verify", capacity=room_of("verify", 400, 8))
    design = AdaptiveDesign([domain], held_out=0)
    (surface,) = measure([cramped], [domain], device=detect("cpu"), budget_s=1.0, sink=KeptVisits(), design=design)
    failed = {(cell.batch, cell.context_tokens) for cell in surface.measurements if cell.failure}
    ran = {(cell.batch, cell.context_tokens) for cell in surface.measurements if cell.repeats_ms}
    assert (3, 400) in failed and {batch for batch, _ in failed} == {3}
    assert ran >= {(1, 20), (1, 400), (3, 20)}


def test_a_tree_of_seven_is_the_complete_one_of_three_levels() -> None:
    tree = whole_tree(7)
    sees = [set(np.flatnonzero(row).tolist()) for row in tree.visible[0]]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert sees == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}, {0, 2, 6}]


def test_a_smaller_tree_begins_every_larger_one() -> None:
    large = whole_tree(60)
    for nodes in (1, 2, 17):
        assert (whole_tree(nodes).visible == large.visible[:, :nodes, :nodes]).all()


def test_nodes_of_a_layer_see_one_ancestor_in_each_layer_above_and_themselves() -> None:
    layer = tree_layer(4)
    assert layer.visible.sum(axis=2).tolist() == [[3, 3, 3, 3]]
    assert layer.visible.sum(axis=1).tolist() == [[1] * 12]


def test_a_verify_sees_the_context_and_its_own_branch_only() -> None:
    (step,) = steps_of("verify", batch=2, context=5, tokens=3)
    assert step.bias is not None
    open_columns = [set(torch.nonzero(row == 0).flatten().tolist()) for row in step.bias[1]]
    context = set(range(5))
    assert open_columns == [context | {5}, context | {5, 6}, context | {5, 7}]


def test_a_verify_has_the_shapes_of_a_decoders_tree_round() -> None:
    _, (decoded,) = decoded_steps(Eagle2Policy(verify_tokens=9, depth=2, top_k=3), batch=2, prompt=12)
    (measured,) = steps_of("verify", batch=2, context=12, tokens=9)
    assert same_shapes(measured, decoded)


def test_a_draft_step_has_the_shapes_of_a_decoders_third_layer() -> None:
    drafted, _ = decoded_steps(Eagle2Policy(verify_tokens=9, depth=3, top_k=3), batch=2, prompt=12)
    (measured,) = steps_of("draft", batch=2, context=13, tokens=3)
    assert same_shapes(measured, drafted[3])


def test_a_loop_runs_the_forwards_of_a_decoders_draft() -> None:
    drafted, _ = decoded_steps(Eagle2Policy(verify_tokens=13, depth=2, top_k=4), batch=2, prompt=12)
    looped = steps_of("loop:3", batch=2, context=12, tokens=4, vocabulary=64)
    assert len(looped) == len(drafted) == 3
    assert all(same_shapes(mine, other) for mine, other in zip(looped, drafted, strict=True))


def test_a_loop_drafts_the_same_forwards_every_time() -> None:
    witness = Witness(tiny_lean(layers=1, seed=0))
    call = runner(witness, "loop:3").prepare(2, 10, 2)
    witness.steps.clear()
    call()
    call()
    first, second = witness.steps[:3], witness.steps[3:]
    assert [step.tokens.tolist() for step in first] == [step.tokens.tolist() for step in second]


def test_a_loop_of_width_one_is_a_chain_without_masks() -> None:
    steps = steps_of("loop:4", batch=1, context=9, tokens=1)
    assert [step.positions.tolist() for step in steps] == [[[9]], [[10]], [[11]], [[12]]]
    assert all(step.bias is None for step in steps)


def test_a_prompt_is_read_in_pieces_that_join() -> None:
    steps = steps_of("prefill", batch=1, context=0, tokens=PREFILL_TOKENS - 20, vocabulary=24)
    steps += steps_of("prefill", batch=1, context=400, tokens=100)
    places = [step.positions.flatten().tolist() for step in steps]
    assert places == [list(range(PREFILL_TOKENS - 20)), list(range(400, 500))]


def test_a_prefill_has_the_shapes_of_a_decoders() -> None:
    target = Witness(tiny_lean(layers=1, seed=0))
    decoder = Engine(target, {}, always(StepConfig(policy=Eagle2Policy())), slots=1, capacity=100)
    decoder.admit(Request(prompt=tuple(range(20)), max_new_tokens=2))
    (measured,) = steps_of("prefill", batch=1, context=0, tokens=20)
    assert same_shapes(measured, target.steps[0])


def test_a_prefill_of_a_batch_reads_one_prompt_after_the_other() -> None:
    steps = steps_of("prefill", batch=3, context=0, tokens=20)
    assert [step.tokens.shape for step in steps] == [(1, 20)] * 3


def test_all_rows_of_a_shape_share_one_mask_in_memory() -> None:
    (step,) = steps_of("verify", batch=3, context=50, tokens=16)
    assert step.bias is not None
    assert step.bias.shape == (3, 16, 66) and step.bias.untyped_storage().nbytes() == 16 * 66 * 8


@pytest.mark.parametrize("role", ["verify", "draft", "prefill", "loop:3"])
def test_a_second_call_finds_the_cache_as_the_first_left_it(role: str) -> None:
    witness = Witness(tiny_lean(layers=2, seed=0))
    call = runner(witness, role).prepare(2, 20, 6)
    call()
    first = witness.caches[0].states.clone()
    call()
    assert torch.equal(witness.caches[0].states, first)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(MeasurementError, match="role is 'exit:0'"):
        runner(tiny_lean(layers=2, seed=0), "exit:0")


def test_an_exit_behind_the_last_layer_is_refused() -> None:
    with pytest.raises(ModelError, match="an exit after 3 layers does not exist in a model of 2"):
        runner(tiny_lean(layers=2, seed=0), "exit:3")


def test_an_exit_needs_the_lean_forward() -> None:
    with pytest.raises(MeasurementError, match="needs the lean forward"):
        runner(GenericModel(tiny_neox(layers=2, seed=0)), "exit:1")


@pytest.mark.parametrize("model", [tiny_lean(layers=1, seed=0), GenericModel(tiny_neox(layers=1, seed=0))])
def test_cuda_graphs_need_a_gpu(model: CausalModel) -> None:
    with pytest.raises(DeviceError, match="on cpu; use regime eager"):
        runner_of(model, "verify", "cuda-graph", identity="model", slots=1, capacity=10)


def test_a_regime_of_another_engine_is_refused() -> None:
    with pytest.raises(MeasurementError, match="cannot run as 'engine:vllm'"):
        runner_of(tiny_lean(layers=1, seed=0), "verify", "engine:vllm", identity="model", slots=1, capacity=10)
