"""Regimes: a captured or compiled forward computes what the eager one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import MeasurementError
from spectune.runtime.cache import KeyValueCache
from spectune.runtime.layout import lay_out
from spectune.runtime.models.arena import Arena
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime
from spectune.runtime.models.static_input import StaticInput

from .tiny_models import tiny_lean, tiny_llama, tiny_neox

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def step_of(model: CausalModel, context: int, count: int, seed: int, *, take: bool = False) -> ForwardInput:
    """Return a forward of two rows with random tokens; rows of another seed stand at other contexts."""
    draw = np.random.default_rng(seed)
    return lay_out(
        draw.integers(0, model.vocabulary, (2, count)),
        np.arange(count),
        [context, context - seed],
        np.tri(count, dtype=np.bool_)[None],
        take=np.array([count - 1, seed % count]) if take else None,
        dtype=model.dtype,
        device=model.device,
    )


def noisy_cache(model: CausalModel) -> KeyValueCache:
    torch.manual_seed(1)
    cache = model.new_cache(2, 40)
    cache.states.normal_()
    return cache


def run(model: CausalModel, step: ForwardInput, cache: KeyValueCache) -> Tensor:
    """Return the logits where no later forward overwrites them."""
    return model.forward(step, cache).clone()


def on_gpu(kind: str) -> CausalModel:
    if kind == "lean":
        return LeanModel(tiny_llama(layers=2, seed=0).float().cuda())
    return GenericModel(tiny_neox(layers=2, seed=0).float().cuda())


def test_views_of_an_arena_share_their_memory() -> None:
    arena = Arena(torch.float32, CPU)
    large, small = arena.view((4, 5)), arena.view((3, 2))
    small.fill_(7.0)
    assert large.flatten()[:6].tolist() == [7.0] * 6


def test_a_view_outlives_the_growth_of_its_arena() -> None:
    arena = Arena(torch.float32, CPU)
    early = arena.view((2,)).fill_(3.0)
    arena.view((1000,)).fill_(9.0)
    assert early.tolist() == [3.0, 3.0]


def test_an_arena_that_grows_bit_by_bit_allocates_rarely() -> None:
    arena = Arena(torch.float32, CPU)
    places = {arena.view((size,)).data_ptr() for size in range(1, 1000)}
    assert len(places) <= 11


@pytest.mark.parametrize("take", [False, True])
def test_a_static_input_computes_what_was_loaded_last(take: bool) -> None:
    model, masks = tiny_lean(layers=2, seed=0), Arena(torch.float64, CPU)
    static = StaticInput(step_of(model, 9, 3, seed=0, take=take), masks)
    other = step_of(model, 9, 3, seed=1, take=take)
    StaticInput(step_of(model, 12, 5, seed=2), masks)
    static.load(other)
    assert torch.equal(model.forward(static.step, noisy_cache(model)), model.forward(other, noisy_cache(model)))


def test_a_static_input_never_moves() -> None:
    model, masks = tiny_lean(layers=1, seed=0), Arena(torch.float64, CPU)
    static = StaticInput(step_of(model, 9, 3, seed=0), masks)
    assert static.step.bias is not None
    before = [tensor.data_ptr() for tensor in (static.step.tokens, static.step.positions, static.step.bias)]
    static.load(step_of(model, 9, 3, seed=1))
    assert before == [tensor.data_ptr() for tensor in (static.step.tokens, static.step.positions, static.step.bias)]


@pytest.mark.parametrize("change", [{"context": 10}, {"count": 4}, {"take": True}])
def test_forwards_of_different_shape_have_different_signatures(change: dict) -> None:
    model = tiny_lean(layers=1, seed=0)
    asked: dict = {"context": 9, "count": 3, "take": False}
    assert step_of(model, **asked, seed=0).signature != step_of(model, **(asked | change), seed=0).signature
    assert step_of(model, **asked, seed=0).signature == step_of(model, **asked, seed=1).signature


def test_a_model_in_its_own_regime_is_itself() -> None:
    lean, generic = tiny_lean(layers=1, seed=0), GenericModel(tiny_neox(layers=1, seed=0))
    assert in_regime(lean, "eager") is lean and in_regime(generic, "eager") is generic


def test_only_the_lean_forward_is_compiled() -> None:
    with pytest.raises(MeasurementError, match="only the lean forward"):
        in_regime(GenericModel(tiny_neox(layers=1, seed=0)), "compiled")


def test_blocked_bf16_weights_are_not_compiled() -> None:
    with pytest.raises(MeasurementError, match="oneDNN's own layout"):
        in_regime(LeanModel(tiny_llama(layers=1, seed=0).bfloat16()), "compiled")


@pytest.mark.slow
def test_a_compiled_forward_computes_what_the_eager_one_does() -> None:
    model = LeanModel(tiny_llama(layers=2, seed=0).float())
    compiled = in_regime(model, "compiled")
    for context, count, seed, take in ((9, 3, 0, False), (9, 3, 1, False), (12, 4, 2, True)):
        step, caches = step_of(model, context, count, seed, take=take), (noisy_cache(model), noisy_cache(model))
        torch.testing.assert_close(compiled.forward(step, caches[0]), model.forward(step, caches[1]))
        torch.testing.assert_close(caches[0].states, caches[1].states)


@needs_cuda
@pytest.mark.parametrize("kind", ["lean", "generic"])
def test_a_replayed_forward_computes_what_the_eager_one_does(kind: str) -> None:
    model = on_gpu(kind)
    graphed, mine, other = in_regime(model, "cuda-graph"), noisy_cache(model), noisy_cache(model)
    for context, count, seed, take in ((9, 3, 0, False), (9, 3, 1, False), (12, 4, 2, True), (9, 3, 3, False)):
        step = step_of(model, context, count, seed, take=take)
        torch.testing.assert_close(run(graphed, step, mine), run(model, step, other))
        torch.testing.assert_close(mine.states, other.states)


@needs_cuda
def test_a_replay_leaves_the_host_free() -> None:
    model = on_gpu("lean")
    graphed, cache, step = in_regime(model, "cuda-graph"), noisy_cache(model), step_of(model, 9, 3, seed=1)
    graphed.forward(step, cache)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphed.forward(step, cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_graphs_of_a_cache_go_with_it() -> None:
    model = on_gpu("lean")
    graphed, cache = in_regime(model, "cuda-graph"), noisy_cache(model)
    graphed.forward(step_of(model, 9, 3, seed=0), cache)
    del cache
    assert len(graphed._graphs) == 0  # type: ignore[attr-defined]
