"""The optimizer of matrices is torch's own where products are bfloat16, and the exact update where they are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spectune.training.muon import Muon, orthogonalised

SHAPES = [(6, 10), (10, 6), (8, 8)]


def matrices(shape: tuple[int, int], count: int) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(place)) for place in range(count)]


def stepped(optimizer: torch.optim.Optimizer, matrix: nn.Parameter, gradients: list[Tensor]) -> Tensor:
    for gradient in gradients:
        matrix.grad = gradient.clone()
        optimizer.step()
    return matrix.detach()


def after_steps(shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a matrix after five steps of ours and of torch's."""
    start, *gradients = matrices(shape, 6)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], lr=0.1, weight_decay=0.1, dtype=dtype)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return stepped(own, ours, gradients), stepped(other, theirs, gradients)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_it_is_torch_s_own(shape: tuple[int, int]) -> None:
    ours, theirs = after_steps(shape, torch.bfloat16)
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_float32_it_differs_by_no_more_than_bfloat16_rounds(shape: tuple[int, int]) -> None:
    ours, theirs = after_steps(shape, torch.float32)
    moved = (theirs - matrices(shape, 1)[0]).norm()
    assert (ours - theirs).norm() < 0.05 * moved


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_vectors_stay_and_singular_values_come_near_1(shape: tuple[int, int]) -> None:
    (matrix,) = matrices(shape, 1)
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    turned = left.T @ orthogonalised(matrix, torch.float64) @ right.T
    scaled = values / values.norm()
    for _ in range(5):  # the quintic, on each singular value by itself
        scaled = 3.4445 * scaled - 4.7750 * scaled**3 + 2.0315 * scaled**5
    torch.testing.assert_close(turned, torch.diag(scaled), atol=1e-10, rtol=0.0)


def test_what_has_no_gradient_stays() -> None:
    matrix = nn.Parameter(matrices((6, 10), 1)[0])
    before = matrix.detach().clone()
    Muon([matrix], lr=0.1, weight_decay=0.1, dtype=torch.float32).step()
    assert torch.equal(matrix.detach(), before)
