"""What happens to rows in one launch, against the same in torch's steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.runtime.models.kernels.fused_rows import gated, normed
from spectune.runtime.models.kernels.jitted import has_triton

from ....support.interpreted import HAS_GPU, launch

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")
ONE_ROUNDING = (2**-8 if HAS_GPU else 2**-7) + 1e-5  # of bfloat16; Triton's interpreter cuts off where a GPU rounds
KINDS = [(torch.float32, 2e-6), (torch.float16, 2**-11 + 1e-5), (torch.bfloat16, ONE_ROUNDING)]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(out: Tensor | None, expected: Tensor, dtype: torch.dtype, tolerance: float) -> None:
    assert out is not None and out.dtype == dtype and out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 1000), (2, 512)])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_gates_open_for_what_is_up(rows: int, width: int, dtype: torch.dtype, tolerance: float) -> None:
    gate_up = 3 * drawn(rows, 2 * width, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(launch(gated, gate_up)[0], F.silu(gate) * up, dtype, tolerance)


def test_gates_far_open_and_far_shut_are_numbers() -> None:
    gate_up = torch.tensor([[-200.0, -90.0, 0.0, 90.0, 200.0, *[1.0] * 5]])
    out = launch(gated, gate_up)[0]
    assert out is not None
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0, 0.0, 90.0, 200.0]]))


@pytest.mark.parametrize("width", [64, 1000, 2048])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_rows_are_normed(width: int, dtype: torch.dtype, tolerance: float) -> None:
    x, weight = 5 * drawn(3, width, dtype=dtype), drawn(width, dtype=dtype, seed=1)
    expected = F.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    assert_close(launch(normed, x, weight, eps=1e-5)[0], expected, dtype, tolerance)


def test_a_wide_weight_is_multiplied_before_the_rounding_as_gemma_does_it() -> None:
    x, weight = drawn(4, 2000, dtype=torch.bfloat16), 1 + drawn(2000, seed=1)
    out = launch(normed, x, weight, eps=1e-6)[0]
    expected = F.rms_norm(x.double(), (2000,), weight.double(), 1e-6)
    assert_close(out, expected, torch.bfloat16, ONE_ROUNDING)
