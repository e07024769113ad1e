"""A layer's products in one launch each, in whole forwards, against the same model step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spectune.runtime.models.choices import Choices
from spectune.runtime.models.graphed import GraphedModel
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.kernels.row_products import LINES
from spectune.runtime.models.products import FusedProducts

from ...support.fused_forward import WIDE_TILES, forward_by_kernels, logits_of, step_of, tiny_lean
from ...support.interpreted import HAS_GPU, launch
from ...support.slow_here import SLOW_HERE

needs_triton = pytest.mark.skipif(not has_triton(), reason="needs triton")
needs_gpu = pytest.mark.skipif(not (has_triton() and HAS_GPU), reason="needs triton and a GPU")
TEXT = torch.tensor([[3, 1, 4, 1, 5]])
NONE = -1
KINDS = {  # products of one row that differ: with a bias, a norm's wide weight, an activation, or norms behind them
    "llama": 5,
    "qwen2": 5,
    "qwen3": 5,
    "gemma": 5,  # its activation is torch's; the product behind it is of a kind of its own
    "gemma3": 3,  # norms stand behind the two others
}
LIKE_QWEN2 = ("llama", "qwen3")  # in products of several rows, but for its bias


def by_kernels(tokens: Tensor, *, family: str, dtype: torch.dtype, last: bool) -> tuple[Tensor, list[int]]:
    """Return logits and the ways in which products were done."""
    ways = torch.full((16,), NONE)
    logits, _, _, filled = launch(forward_by_kernels, TEXT, tokens, ways, family=family, dtype=dtype, last=last)
    assert logits is not None and filled is not None
    return logits, [way for way in filled.tolist() if way != NONE]


def step_by_step(tokens: Tensor, family: str) -> Tensor:
    """Return the logits of the model in float64, eagerly."""
    model = tiny_lean(family, torch.float64, torch.device("cpu"))
    return logits_of(model, TEXT, step_of(model, tokens, by_tree=False))


@needs_triton
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=SLOW_HERE if family in LIKE_QWEN2 else ()) for family in KINDS]
)
def test_a_token_by_fused_products_is_what_it_is_step_by_step(family: str) -> None:
    token = torch.tensor([[9]])
    logits, ways = by_kernels(token, family=family, dtype=torch.float32, last=True)
    assert ways == [len(WIDE_TILES)] * KINDS[family]
    torch.testing.assert_close(logits.double(), step_by_step(token, family), rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=SLOW_HERE if family in LIKE_QWEN2 else ()) for family in KINDS]
)
def test_several_tokens_by_fused_products_are_what_they_are_step_by_step(family: str) -> None:
    tokens = torch.tensor([[9, 2, 6]])
    logits, ways = by_kernels(tokens, family=family, dtype=torch.float16, last=True)
    assert ways == [len(WIDE_TILES)] * KINDS[family]
    expected = step_by_step(tokens, family)
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=0.02 * float(expected.abs().max()))


@needs_triton
def test_tokens_behind_a_text_that_outgrew_a_window_see_what_it_leaves_them() -> None:
    """By the kernel that reads the tree, in whose layers nobody makes a mask."""
    text, tokens, ways = torch.arange(75).unsqueeze(0) % 50, torch.tensor([[9, 2, 6]]), torch.full((16,), NONE)

    def expected(window: int) -> Tensor:
        model = tiny_lean("gemma3", torch.float64, torch.device("cpu"), sliding_window=window)
        return logits_of(model, text, step_of(model, tokens, by_tree=False, context=75))

    found, *_ = launch(
        forward_by_kernels, text, tokens, ways, family="gemma3", dtype=torch.float32, last=False, sliding_window=64
    )
    assert found is not None
    torch.testing.assert_close(found.double(), expected(64), rtol=1e-4, atol=1e-4)
    assert (expected(65) - expected(64)).abs().max() > 1e-2


@needs_triton
def test_where_the_usual_way_is_the_fastest_it_is_taken() -> None:
    token = torch.tensor([[9]])
    logits, ways = by_kernels(token, family="llama", dtype=torch.float32, last=False)
    assert ways == [0] * KINDS["llama"]
    torch.testing.assert_close(logits.double(), step_by_step(token, "llama"), rtol=1e-4, atol=1e-4)


def test_a_forward_that_is_not_captured_goes_by_none_of_the_ways_that_are_measured() -> None:
    model = tiny_lean("llama", torch.float32, torch.device("cpu"))
    tokens = torch.tensor([[9]])
    model.reads_trees = True
    cache = model.new_cache(1, 8)
    assert model.place(step_of(model, tokens, by_tree=False), cache).products is not model.products
    assert model.place(step_of(model, tokens, by_tree=True), cache).products is model.products


def test_on_a_cpu_no_way_is_ever_measured() -> None:
    model = tiny_lean("llama", torch.float32, torch.device("cpu"))
    assert model.products.choices.timer is None


@needs_gpu
@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_captured_forward_measures_its_products_and_computes_what_the_eager_one_does(
    count: int, dtype: torch.dtype
) -> None:
    model = tiny_lean("llama", dtype, torch.device("cuda", 0), hidden_size=256, intermediate_size=512)
    model.products = FusedProducts(model.anatomy, choices := Choices(model.products.choices.timer))
    tokens = torch.arange(count).unsqueeze(0)
    eager = logits_of(model, TEXT, step_of(model, tokens, by_tree=False)).clone()
    graphed = GraphedModel(model)
    captured = logits_of(graphed, TEXT, step_of(model, tokens, by_tree=True))
    assert len(choices.kept) == (0 if count > LINES else 5)
    exact = tiny_lean("llama", torch.float64, torch.device("cpu"), hidden_size=256, intermediate_size=512)
    expected = logits_of(exact, TEXT, step_of(exact, tokens, by_tree=False))
    errors = [float((logits.cpu().double() - expected).abs().max()) for logits in (captured, eager)]
    assert errors[0] <= 2 * errors[1]  # which is what rounding costs: 0.2 to 1.4 in bfloat16
