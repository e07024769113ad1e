"""Regimes: a captured or compiled forward computes what the eager one does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import MeasurementError
from spectune.runtime.models.drafter import BlindModel
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import Arena, lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.places import View, views_of
from spectune.runtime.models.projection import Projection
from spectune.runtime.models.regime import in_regime
from spectune.runtime.models.static_input import StaticInput
from spectune.runtime.models.vocabulary import FittedModel

from ..support.allocator import count_bytes
from ..support.repeated import graphed as repeated
from ..support.tiny_models import tiny_lean, tiny_llama, tiny_model, tiny_neox

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def step_of(
    model: CausalModel, context: int, count: int, seed: int, *, take: bool = False, is_captured: bool = False
) -> ForwardInput:
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
        seen_in=(lambda positions: 32) if is_captured else None,
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


def on_cpu(kind: str) -> CausalModel:
    return tiny_lean(layers=2, seed=0) if kind == "lean" else GenericModel(tiny_neox(layers=2, seed=0).float())


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
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_static_input_computes_what_was_loaded_last(take: bool, is_packed: bool) -> None:
    model = tiny_lean(layers=2, seed=0)
    first, second = (step_of(model, 9, 3, seed, take=take, is_captured=True) for seed in (0, 1))
    static = StaticInput(packed_or_not(first, is_packed), CPU)
    static.load(packed_or_not(second, is_packed))
    static.arrive()
    with_mask = step_of(model, 9, 3, seed=1, take=take)
    torch.testing.assert_close(
        model.forward(static.step, noisy_cache(model)), model.forward(with_mask, noisy_cache(model))
    )


def packed_or_not(step: ForwardInput, is_packed: bool) -> ForwardInput:
    return step if is_packed else replace(step, packed=None)


def test_a_static_input_never_moves() -> None:
    model = tiny_lean(layers=1, seed=0)
    static = StaticInput(step_of(model, 9, 3, seed=0, is_captured=True), CPU)
    assert static.step.tree is not None
    before = [tensor.data_ptr() for tensor in (static.step.tokens, static.step.columns, static.step.tree.bits)]
    static.load(step_of(model, 9, 3, seed=1, is_captured=True))
    assert before == [tensor.data_ptr() for tensor in (static.step.tokens, static.step.columns, static.step.tree.bits)]


@pytest.mark.parametrize("columns", [3, 64, 65, 130])
def test_a_tree_tells_the_same_as_a_mask(columns: int) -> None:
    draw = np.random.default_rng(columns)
    visible = draw.integers(0, 2, (3, 4, columns)).astype(np.bool_)
    laid = partial(lay_out, draw.integers(0, 9, (3, 4)), np.arange(4), [5, 0, 17], visible, written=columns - 4)
    by_mask = laid(dtype=torch.float32, device=CPU)
    by_tree = laid(dtype=torch.float32, device=CPU, seen_in=lambda positions: positions + 7)
    assert by_mask.bias is not None and by_tree.tree is not None and by_tree.bias is None
    seen = by_tree.tree.bias(by_tree.seen, torch.float32)
    assert torch.equal(seen[..., : by_mask.seen], by_mask.bias) and (seen[..., by_mask.seen :] < 0).all()


@pytest.mark.parametrize(("window", "is_told"), [(64, True), (63, False), (400, True)])
def test_a_tree_tells_windowed_layers_what_they_see_unless_it_may_outgrow_them(window: int, is_told: bool) -> None:
    model = LeanModel(tiny_model("gemma3", sliding_window=window))
    step = step_of(model, 9, 3, seed=0, is_captured=True)
    narrow, wide = views_of(replace(step, seen=300), model.anatomy, 0, reads_trees=True)
    assert wide.tree is step.tree and wide.window is None
    assert (narrow.tree is step.tree, narrow.bias is None) == (is_told, is_told)
    assert narrow.window == (window if is_told and window < 300 else None)


def test_what_a_window_closes_is_told_once_for_all_heads() -> None:
    """A mask over a long text is large: it is repeated for a key's query heads when all of it is known."""
    model = LeanModel(tiny_model("mistral, windowed", num_key_value_heads=1))
    step = step_of(model, 120, 100, seed=0)
    views: list[View] = []
    counted = count_bytes(lambda: views.extend(views_of(step, model.anatomy, 0, reads_trees=False)))
    (view,) = views
    assert view.bias is not None and view.bias.shape == (len(step.tokens), 1, 400, 220)
    assert counted.peak_bytes < 2 * view.bias.nbytes


@pytest.mark.parametrize(("window", "masks"), [(400, 1), (40, 2)])
def test_layers_that_see_alike_share_a_mask(window: int, masks: int) -> None:
    model = LeanModel(tiny_model("gemma3", sliding_window=window, num_key_value_heads=1))
    step = step_of(model, 120, 20, seed=0)
    views = views_of(step, model.anatomy, 0, reads_trees=False)
    assert len(views) == 2 and len({id(view.bias) for view in views}) == masks


@pytest.mark.parametrize("change", [{"context": 10}, {"count": 4}, {"take": True}])
def test_forwards_of_different_shape_have_different_signatures(change: dict) -> None:
    model = tiny_lean(layers=1, seed=0)
    asked: dict = {"context": 9, "count": 3, "take": False}
    assert step_of(model, **asked, seed=0).signature != step_of(model, **(asked | change), seed=0).signature
    assert step_of(model, **asked, seed=0).signature == step_of(model, **asked, seed=1).signature


def test_a_model_in_its_own_regime_is_itself() -> None:
    lean, generic = tiny_lean(layers=1, seed=0), GenericModel(tiny_neox(layers=1, seed=0))
    assert in_regime(lean, "eager") is lean and in_regime(generic, "eager") is generic


@pytest.mark.parametrize(
    "model",
    [
        GenericModel(tiny_neox(layers=1, seed=0)),
        FittedModel(tiny_lean(layers=1, seed=0), 30),
        BlindModel(tiny_lean(layers=1, seed=0), placeholder=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_only_the_lean_forward_itself_is_compiled(model: CausalModel) -> None:
    with pytest.raises(MeasurementError, match=r"only the lean forward itself .* nor one whose tokens are made to fit"):
        in_regime(model, "compiled")


def test_blocked_bf16_weights_are_not_compiled() -> None:
    with pytest.raises(MeasurementError, match="an order of their own"):
        in_regime(LeanModel(tiny_llama(layers=1, seed=0).bfloat16()), "compiled")


@pytest.mark.slow
def test_a_compiled_forward_computes_what_the_eager_one_does() -> None:
    model = LeanModel(tiny_llama(layers=2, seed=0).float())
    compiled = in_regime(model, "compiled")
    for context, count, seed, take in ((9, 3, 0, False), (9, 3, 1, False), (12, 4, 2, True)):
        step, caches = step_of(model, context, count, seed, take=take), (noisy_cache(model), noisy_cache(model))
        torch.testing.assert_close(compiled.forward(step, caches[0]), model.forward(step, caches[1]))
        torch.testing.assert_close(caches[0].states, caches[1].states)


@pytest.mark.parametrize("where", ["repeated", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("kind", ["lean", "generic"])
def test_a_replayed_forward_computes_what_the_eager_one_does(kind: str, where: str) -> None:
    model = on_gpu(kind) if where == "cuda" else on_cpu(kind)
    graphed = in_regime(model, "cuda-graph") if where == "cuda" else repeated(model)[0]
    mine, other = noisy_cache(model), noisy_cache(model)
    for context, count, seed, take in ((9, 3, 0, False), (9, 3, 1, False), (12, 4, 2, True), (9, 3, 3, False)):
        replayed, eager = (step_of(model, context, count, seed, take=take, is_captured=way) for way in (True, False))
        torch.testing.assert_close(run(graphed, replayed, mine), run(model, eager, other))
        torch.testing.assert_close(mine.states, other.states)


def test_a_shape_is_captured_once_and_a_prompt_never() -> None:
    model, recorder = repeated(on_cpu("lean"))
    cache = noisy_cache(model)
    for seed in range(3):
        model.forward(step_of(model, 9, 3, seed, is_captured=True), cache)
        model.forward(step_of(model, 9 + seed, 3, seed), cache)
    assert [work.replays for work in recorder.recorded] == [3]


@needs_cuda
def test_a_replay_leaves_the_host_free() -> None:
    model = on_gpu("lean")
    graphed, cache = in_regime(model, "cuda-graph"), noisy_cache(model)
    graphed.forward(step_of(model, 9, 3, seed=1, is_captured=True), cache)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphed.forward(step_of(model, 9, 3, seed=1, is_captured=True), cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_graphs_of_a_cache_go_with_it() -> None:
    model = on_gpu("lean")
    graphed, cache = in_regime(model, "cuda-graph"), noisy_cache(model)
    graphed.forward(step_of(model, 9, 3, seed=0, is_captured=True), cache)
    assert len(graphed._graphs) == 1  # type: ignore[attr-defined]
    del cache
    assert len(graphed._graphs) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_that_is_added_into_a_residual_is_the_one_that_is_added_to_it(has_bias: bool) -> None:
    torch.manual_seed(0)
    weight, residual, x = torch.randn(5, 7), torch.randn(3, 5), torch.randn(3, 7)
    projection = Projection(weight, torch.randn(5) if has_bias else None)
    expected = projection.added_to(residual, x)
    torch.testing.assert_close(projection.add_into(residual.clone(), x), expected)
