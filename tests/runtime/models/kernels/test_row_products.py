"""Products of few rows with what stands before and behind them, against the same in float64."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.runtime.models.kernels import row_products
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.kernels.row_products import LINES, RUN, TILES, Tile, multiplied, tiles_for
from spectune.runtime.models.norm import Norm

from ....support.interpreted import HAS_GPU, launch
from ....support.pairwise import crossed

needs_triton = pytest.mark.skipif(not has_triton(), reason="needs triton")
needs_gpu = pytest.mark.skipif(not (has_triton() and HAS_GPU), reason="needs triton and a GPU")
ONE_ROUNDING = 2**-8 if HAS_GPU else 2**-7  # of bfloat16; Triton's interpreter cuts off where a GPU rounds
ROW_KINDS = [(torch.float32, 1e-6), (torch.float16, 2**-11), (torch.bfloat16, ONE_ROUNDING)]
LEAST_SHARED_BYTES = 99 * 2**10  # that a program may have on a GPU of compute capability 8.6 to 9.0
PROLOGUES: list[Literal["nothing", "norm", "gate"]] = ["nothing", "norm", "gate"]  # with a gate there is a norm, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A random product."""

    rows: int
    outs: int
    width: int
    prologue: Literal["nothing", "norm", "gate"]
    dtype: torch.dtype
    has_bias: bool = True
    adds: bool = True
    is_wide: bool = False  # whether the norm's weight is float32

    def drawn(self, *shape: int, seed: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)

    @property
    def norm(self) -> Norm | None:
        weight = self.drawn(self.width, seed=4)
        return Norm(weight=weight.float() if self.is_wide else weight, eps=0.3) if self.prologue != "nothing" else None

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return x, weight, bias and residual."""
        lines = self.outs * (2 if self.prologue == "gate" else 1)
        x = 3 * self.drawn(self.rows, self.width, seed=0)
        weight = self.drawn(lines, self.width, seed=1)
        bias = 20 * self.drawn(lines, seed=2) if self.has_bias else None
        return x, weight, bias, 20 * self.drawn(self.rows, self.outs, seed=3) if self.adds else None

    def expected(self) -> Tensor:
        """Return the product in float64."""
        x, weight, bias, residual = (None if one is None else one.double() for one in self.tensors())
        assert x is not None and weight is not None
        if self.norm is not None:
            x = F.rms_norm(x, (self.width,), self.norm.weight.double(), self.norm.eps)
        y = F.linear(x, weight, bias)
        if self.prologue == "gate":
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        return y if residual is None else y + residual


def computed(case: Case, tile: Tile) -> tuple[Tensor, list[Tensor | None]]:
    """Return the product, and all tensors as it left them."""
    on = {"norm": case.norm} if not HAS_GPU or case.norm is None else {"norm": on_gpu(case.norm)}
    out, *after = launch(multiplied, *case.tensors(), tile=tile, is_gated=case.prologue == "gate", **on)
    assert out is not None and out.dtype == case.dtype
    return out, after


def on_gpu(norm: Norm) -> Norm:
    return Norm(weight=norm.weight.cuda(), eps=norm.eps)


def error(case: Case, tile: Tile, expected: Tensor | None = None) -> float:
    """Return the greatest error, as a share of the greatest number."""
    wanted = case.expected() if expected is None else expected
    return float((computed(case, tile)[0].double() - wanted).abs().max() / wanted.abs().max())


@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), ROW_KINDS)
@crossed(prologue=PROLOGUES, tile=TILES, rows=(1, 2, 3))
def test_few_rows_are_multiplied(
    rows: int, tile: Tile, prologue: Literal["nothing", "norm", "gate"], dtype: torch.dtype, tolerance: float
) -> None:
    assert error(Case(rows=rows, outs=9, width=1100, prologue=prologue, dtype=dtype), tile) < tolerance


@pytest.mark.thinned
@needs_triton
@pytest.mark.parametrize("width", [8, 33, 128, 256, 257])
@pytest.mark.parametrize("outs", [5, 16, 17])
@pytest.mark.parametrize(("rows", "tile"), [(1, TILES[0]), (4, TILES[2])])
def test_every_shape_is_multiplied_to_its_edges(rows: int, tile: Tile, outs: int, width: int) -> None:
    dtype, tolerance = torch.float32, 2e-6
    for prologue in PROLOGUES:
        assert error(Case(rows=rows, outs=outs, width=width, prologue=prologue, dtype=dtype), tile) < tolerance


@pytest.mark.thinned
@needs_triton
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("prologue", PROLOGUES)
def test_a_product_of_another_kind_is_another(rows: int, prologue: Literal["nothing", "norm", "gate"]) -> None:
    """The errors above could not pass for the product without its bias, its residual, or with the other's norm."""
    tile = TILES[0]
    case = Case(rows=rows, outs=20, width=64, prologue=prologue, dtype=torch.float16)
    for other in (
        Case(rows=rows, outs=20, width=64, prologue=prologue, dtype=torch.float16, has_bias=False),
        Case(rows=rows, outs=20, width=64, prologue=prologue, dtype=torch.float16, adds=False),
    ):
        assert error(case, tile, other.expected()) > 0.1
        assert error(other, tile) < 2**-10
    if prologue != "gate":
        other_one: Literal["nothing", "norm"] = "nothing" if prologue == "norm" else "norm"
        swapped = Case(rows=rows, outs=20, width=64, prologue=other_one, dtype=torch.float16)
        assert error(case, tile, swapped.expected()) > 0.1


@needs_triton
@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_added_to_is_written_over_and_nothing_else(rows: int) -> None:
    tile = TILES[0]
    case = Case(rows=rows, outs=20, width=64, prologue="norm", dtype=torch.float16)
    out, (*read, residual) = computed(case, tile)
    assert residual is not None and torch.equal(out, residual)
    for before, after in zip(case.tensors()[:3], read, strict=True):
        assert before is not None and after is not None and torch.equal(before, after)


@needs_triton
@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (4, torch.bfloat16)])
def test_a_norm_with_a_wide_weight_is_what_gemma_does(rows: int, dtype: torch.dtype) -> None:
    case = Case(rows=rows, outs=20, width=100, prologue="norm", dtype=dtype, is_wide=True)
    tile = TILES[0]
    assert error(case, tile) < 2 * ONE_ROUNDING


@needs_triton
@pytest.mark.parametrize("rows", [1, 4])
def test_gates_far_open_and_far_shut_are_numbers(rows: int) -> None:
    x = torch.tensor([-300.0, -90.0, 0.0, 90.0, 300.0, 1.0]).repeat(rows, 1).half()
    weight = torch.cat((torch.eye(5, 6), torch.eye(6)[5:].repeat(5, 1))).half()
    tile = TILES[0]
    out = launch(multiplied, x, weight, None, None, tile=tile, is_gated=True)[0]
    assert out is not None
    torch.testing.assert_close(out.float(), torch.tensor([0.0, 0.0, 0.0, 90.0, 300.0]).repeat(rows, 1))


@needs_triton
@pytest.mark.parametrize("rows", [1, 4])
def test_the_same_inputs_give_the_same_bits(rows: int) -> None:
    case = Case(rows=rows, outs=50, width=600, prologue="norm", dtype=torch.float16)
    tile = TILES[0]
    assert torch.equal(computed(case, tile)[0], computed(case, tile)[0])


@needs_triton
def test_more_rows_than_registers_take_are_refused() -> None:
    case = Case(rows=LINES + 1, outs=16, width=16, prologue="nothing", dtype=torch.float16)
    with pytest.raises((RuntimeError, AssertionError), match="few rows"):
        computed(case, TILES[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tiles_are_for_rows_and_formats_that_the_kernel_takes(dtype: torch.dtype) -> None:
    known = () if dtype == torch.float64 else TILES
    assert tiles_for(1, dtype) == tiles_for(LINES, dtype) == known
    assert tiles_for(0, dtype) == tiles_for(LINES + 1, dtype) == ()


@pytest.mark.thinned
@needs_triton
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("is_gated", [False, True])
def test_the_kernel_compiles_for_an_h100_and_fits_into_a_small_gpu(tile: Tile, is_gated: bool) -> None:
    compiler: Any = import_module("triton.compiler")  # untyped
    target = import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    lengths = {"columns": tile.columns, "depth": tile.depth, "lines": LINES, "run": RUN}
    kind = {"is_normed": True, "is_gated": is_gated, "has_bias": True, "adds": not is_gated, "is_chained": True}
    fixed = {**kind, **lengths}
    pointers = dict.fromkeys(("x", "weight", "scale", "bias", "out"), "*bf16")
    types = {**pointers, "eps": "fp32", **dict.fromkeys(("rows", "outs", "width"), "i32")}
    kernel = row_products._multiply.made()
    even = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if name not in ("eps", "rows")}
    source = compiler.ASTSource(kernel, {**types, **dict.fromkeys(fixed, "constexpr")}, fixed, even)
    made = compiler.compile(source, target=target, options={"num_warps": tile.warps, "num_stages": 1})
    assert 0 < made.metadata.shared <= LEAST_SHARED_BYTES
    assert made.asm["ptx"].count("griddepcontrol") == 2  # it lets the next begin, and takes its turn


@needs_gpu
@pytest.mark.parametrize("prologue", PROLOGUES)
@pytest.mark.parametrize(("outs", "width"), [(2048, 2048), (3072, 2048), (2048, 8192), (4096, 14336)])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_products_of_real_models_are_multiplied(
    rows: int, outs: int, width: int, prologue: Literal["nothing", "norm", "gate"]
) -> None:
    case = Case(rows=rows, outs=outs, width=width, prologue=prologue, dtype=torch.bfloat16)
    for tile in tiles_for(rows, case.dtype):
        assert error(case, tile) < 2 * ONE_ROUNDING
