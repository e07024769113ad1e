"""bfloat16 products and layers on a CPU by kernels of ours: what exact numbers give, rounded as a library rounds it."""

from __future__ import annotations

import ctypes
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.errors import ModelError
from spectune.runtime.models import bfloat16, joined_products, lean
from spectune.runtime.models.bfloat16 import BFloat16Product, is_for
from spectune.runtime.models.bits import bits
from spectune.runtime.models.kernels import bfloat16_dots, bfloat16_tiles, threads
from spectune.runtime.models.kernels.bfloat16_dots import MOST_ROWS, WIDTH, has_dots
from spectune.runtime.models.kernels.bfloat16_rows import gate_rows
from spectune.runtime.models.kernels.threads import MOST_ALONE
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.norm import Norm
from spectune.runtime.models.projection import Projection

from ...support.fused_forward import logits_of, step_of, tiny_lean
from ...support.tiny_models import tiny_model
from ...support.torch_threads import threads_of

needs_dots = pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16")
CPU = torch.device("cpu")
ROUNDING = 2.0**-8  # of bfloat16, relative
TEXT = torch.tensor([[3, 1, 4, 1, 5, 9]])


def drawn(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def require_close(found: Tensor, exact: Tensor, sums: int) -> None:
    """Assert that numbers are exact ones but for one rounding, and for the order of so many float32 additions."""
    assert found.dtype == torch.bfloat16
    allowed = ROUNDING * exact.abs() + 1e-6 * sums
    assert ((found.double() - exact).abs() <= allowed).all()


@pytest.mark.thinned
@needs_dots
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [*range(1, MOST_ROWS + 2), *(16, 17, 2 * MOST_ROWS + 3, 31, 32, 33), 70])
@pytest.mark.parametrize(("outs", "length"), [(WIDTH, 4), (3 * WIDTH, 36), (2 * WIDTH, 32), (WIDTH, 160)])
def test_it_is_the_product_rounded_once(rows: int, outs: int, length: int, count: int) -> None:
    x, weight, bias, residual = (drawn(*size, seed=seed) for seed, size in enumerate(sizes(rows, outs, length)))
    exact = x.double() @ weight.double().T
    with threads_of(count):
        plain, biased = BFloat16Product(weight), BFloat16Product(weight, bias)
        require_close(plain(x), exact, length)
        require_close(plain(x, residual), exact + residual.double(), length)
        require_close(biased(x), exact + bias.double(), length)
        require_close(biased(x, residual), exact + bias.double() + residual.double(), length)


def sizes(rows: int, outs: int, length: int) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of x, weight, bias and residual."""
    return (rows, length), (outs, length), (outs,), (rows, outs)


@needs_dots
def test_whole_numbers_come_out_exactly() -> None:
    """Their sums and products have no rounding at all, so that one number in a wrong place tells."""
    x = torch.arange(5 * 8).remainder(7).view(5, 8).bfloat16()
    weight = torch.arange(2 * WIDTH * 8).remainder(5).view(2 * WIDTH, 8).bfloat16()
    assert torch.equal(BFloat16Product(weight)(x), x @ weight.T)


@needs_dots
def test_rows_that_lie_apart_are_read_rightly_and_nothing_that_is_given_is_written() -> None:
    whole, weight, residual = drawn(6, 16, seed=1), drawn(WIDTH, 8, seed=2), drawn(3, 2 * WIDTH, seed=3)
    before = residual.clone()
    found = BFloat16Product(weight)(whole[::2, ::2], residual[:, ::2])
    require_close(found, whole[::2, ::2].double() @ weight.double().T + residual[:, ::2].double(), 8)
    assert torch.equal(residual, before)


@needs_dots
@pytest.mark.parametrize("rows", [3, MOST_ROWS + 1])
def test_infinities_and_nan_come_through(rows: int) -> None:
    x = torch.ones(rows, 8).bfloat16()
    x[1, 3], x[2, 0] = float("inf"), float("nan")
    found = BFloat16Product(torch.ones(WIDTH, 8).bfloat16())(x)
    assert found[1].isinf().all() and found[2].isnan().all()
    assert (found[[0, *range(3, rows)]] == 8).all()


@needs_dots
@pytest.mark.parametrize("x", [torch.ones(1, 12).bfloat16(), torch.ones(1, 8), torch.ones(1, 4).bfloat16()], ids=str)
def test_numbers_that_do_not_fit_a_weight_are_refused(x: Tensor) -> None:
    with pytest.raises(ModelError, match="do not fit together"):
        BFloat16Product(torch.ones(WIDTH, 8).bfloat16())(x)


@needs_dots
def test_it_takes_bfloat16_weights_of_whole_panels_and_steps() -> None:
    assert is_for(drawn(WIDTH, 4, seed=0))
    for other in (drawn(WIDTH, 4, seed=0).float(), drawn(WIDTH + 1, 4, seed=0), drawn(WIDTH, 6, seed=0)):
        assert not is_for(other)


@pytest.mark.parametrize("may_use", [False, True])
def test_without_the_instruction_or_where_a_matrix_unit_is_not_to_be_used_a_library_multiplies(may_use: bool) -> None:
    def features(told: str) -> mock.Mock:
        return mock.Mock(**{"target_context.codegen.return_value.magic_tuple.return_value": ("", "", told)})

    cases = (("+avx512bf16,-amx-bf16", True), ("-avx512bf16", False), ("+avx512bf16,+amx-bf16", may_use))
    for told, expected in cases:
        has_unit = "+amx-bf16" in told
        with (
            mock.patch("numba.core.registry.cpu_target", features(told)),
            mock.patch.object(bfloat16_dots, "may_use_tiles", return_value=may_use),
        ):
            with mock.patch.object(bfloat16_dots, "HAS_TILES", has_unit):
                assert has_dots.__wrapped__() is expected
            with mock.patch.object(bfloat16_dots, "HAS_TILES", not has_unit):  # numba is told to pass over it
                assert not has_dots.__wrapped__()
    with (
        mock.patch("numba.core.registry.cpu_target", features("+avx512bf16")),
        mock.patch.object(bfloat16_dots, "HAS_TILES", False),
        mock.patch("llvmlite.binding.llvm_version_info", (15, 0, 7)),
    ):
        assert not has_dots.__wrapped__()


def test_where_loops_cannot_be_shared_several_threads_of_a_library_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "has_dots", lambda: True)
    monkeypatch.setattr(threads, "_teller", lambda: None)
    with threads_of(2):
        assert not is_for(drawn(WIDTH, 4, seed=0))
    with threads_of(1):
        assert is_for(drawn(WIDTH, 4, seed=0))


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("rows", [1, MOST_ALONE // 40 + 1])
def test_gates_are_silu_s(rows: int, is_shared: bool) -> None:
    opened = torch.cat([drawn(rows, 40, seed=4) * 30, drawn(rows, 40, seed=5)], dim=1)
    opened[0, :4] = torch.tensor([0.0, -200.0, 200.0, -1e38])
    out = torch.empty(rows, 40, dtype=torch.bfloat16)
    gate_rows(bits(opened), bits(out), is_shared)
    gate, up = opened.double().chunk(2, dim=1)
    require_close(out, torch.nn.functional.silu(gate) * up, 1)


def test_a_gate_that_is_no_number_leaves_none() -> None:
    opened, out = torch.ones(1, 8).bfloat16(), torch.empty(1, 4, dtype=torch.bfloat16)
    opened[0, 0], opened[0, 5] = float("nan"), float("nan")
    gate_rows(bits(opened), bits(out), False)
    assert out.isnan().tolist() == [[True, True, False, False]]


@needs_dots
def test_a_product_of_what_is_normed_is_both_one_after_the_other() -> None:
    x, weight, norm = drawn(3, 32, seed=6), drawn(WIDTH, 32, seed=7), Norm(weight=drawn(32, seed=8), eps=1e-5)
    projection, products = Projection(weight), joined_products.ALONE
    assert projection.by_kernels is not None
    assert torch.equal(products.normed(x, norm, projection), projection(norm(x)))


FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"]
OURS, LIBRARY = "ours", "library"
BOTH = (joined_products.ALONE, joined_products.SHARED)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}  # whole panels, so that all weights are ours


def lean_by(products: str, family: str) -> LeanModel:
    """Return a bfloat16 model whose products are ours or a library's."""
    with mock.patch.object(bfloat16, "is_for", is_for if products == OURS else lambda _: False):
        return tiny_lean(family, torch.bfloat16, CPU, **SIZES)


def exact_lean(family: str) -> LeanModel:
    """Return a model with the same weights in float64."""
    model: Any = tiny_model(family, **SIZES)  # transformers types the self of its `to` as a dtype
    return LeanModel(model.bfloat16().double())


@pytest.mark.thinned
@needs_dots
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("tokens", [[[9]], [[9, 2, 6, 5]]], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_is_as_close_to_exact_numbers_as_a_library_s(
    family: str, tokens: list[list[int]], count: int
) -> None:
    new = torch.tensor(tokens)

    def logits(model: LeanModel) -> Tensor:
        return logits_of(model, TEXT, step_of(model, new, by_tree=False, context=TEXT.shape[1])).double()

    exact = logits(exact_lean(family))
    with threads_of(count):
        ours, theirs = (float((logits(lean_by(one, family)) - exact).abs().mean()) for one in (OURS, LIBRARY))
    assert ours <= 1.3 * theirs
    assert theirs <= 0.05 * float(exact.abs().mean())


@needs_dots
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_layer_in_one_call_is_what_it_is_in_several(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are normed, and biases, are among the families."""
    model, new = lean_by(OURS, family), torch.tensor([[9, 2, 6]])
    step = step_of(model, new, by_tree=False, context=TEXT.shape[1])
    calls = counted(monkeypatch, joined_products, "run_layers")
    at_once = logits_of(model, TEXT, step)
    assert len(calls) == 2  # the text before, and what is behind it
    for module in (joined_products, lean):  # attention is torch's, and products stand around it
        monkeypatch.setattr(module, "is_compiled_attention", lambda *_: False)
    calls.clear()
    around = logits_of(model, TEXT, step)
    assert not calls
    require_alike(around, at_once)


def require_alike(found: Tensor, expected: Tensor) -> None:
    """Assert that two forwards differ as roundings in other places make them."""
    assert float((found - expected).abs().double().mean()) <= 0.02 * float(expected.abs().double().mean())


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """Return a list to which every call of a module's function adds its name."""
    calls: list[str] = []
    function = getattr(module, name)

    def told(*args: Any) -> None:
        calls.append(name)
        function(*args)

    monkeypatch.setattr(module, name, told)
    return calls


@needs_dots
def test_of_many_rows_several_threads_norm_and_gate_as_one_does() -> None:
    model, rows = lean_by(OURS, "llama"), MOST_ALONE // 64 + 1
    layer, hidden, mixed = model.anatomy.layers[0], drawn(rows, 64, seed=1), drawn(rows, 64, seed=2)
    with threads_of(2):
        norms, lefts = zip(
            *((one.normed(hidden, layer.input_norm, layer.qkv), one.left(hidden, mixed, layer)) for one in BOTH),
            strict=True,
        )
    assert torch.equal(*norms) and torch.equal(*lefts)


@needs_dots
@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_a_layer_with_another_activation_or_norms_behind_its_products_is_several_calls(family: str) -> None:
    assert all(layer.by_kernels is None for layer in lean_by(OURS, family).anatomy.layers)


@needs_dots
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("outs", "length"), [(2 * WIDTH, 64), (WIDTH, 36)])
def test_a_row_s_product_is_the_same_bits_whatever_rows_are_beside_it(outs: int, length: int, count: int) -> None:
    x, weight, bias, residual = (drawn(*size, seed=seed) for seed, size in enumerate(sizes(70, outs, length)))
    product = BFloat16Product(weight, bias)
    with threads_of(count):
        alone = torch.cat([product(x[row : row + 1], residual[row : row + 1]) for row in range(70)])
        for rows in (2, 16, 17, 32, 33, 70):
            assert torch.equal(product(x[:rows], residual[:rows]), alone[:rows])


@needs_dots
def test_numbers_that_are_none_or_beyond_all_stay_in_their_row() -> None:
    x, weight = drawn(20, 64, seed=0), drawn(WIDTH, 64, seed=1)
    expected = BFloat16Product(weight)(x)
    x[3, 5], x[17, 0] = torch.nan, torch.inf
    found = BFloat16Product(weight)(x)
    assert found[3].isnan().all() and not found[17].isfinite().any()
    others = [row for row in range(20) if row not in (3, 17)]
    assert torch.equal(found[others], expected[others])


def test_another_system_than_linux_lets_nobody_use_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=OSError("no such library")))
    assert not bfloat16_tiles.may_use_tiles.__wrapped__()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: mock.Mock(**{"syscall.return_value": -1}))
    assert not bfloat16_tiles.may_use_tiles.__wrapped__()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: mock.Mock(**{"syscall.return_value": 0}))
    assert bfloat16_tiles.may_use_tiles.__wrapped__()
