"""Muon: momentum whose matrices are orthogonalised. Source: Jordan et al. 2024."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the published quintic
ITERATIONS = 5
LEAST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised matrices, Nesterov's form, decoupled weight decay; the state is as torch's own."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
    ) -> None:
        """Optimize two-dimensional parameters; `dtype` is that of the products."""
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, matrix: Tensor, gradient: Tensor, lr: float, weight_decay: float, momentum: float) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean: Tensor = state["momentum_buffer"]
        mean.lerp_(gradient, 1.0 - momentum)
        update = orthogonalised(gradient.lerp(mean, momentum), self._dtype)
        matrix.mul_(1.0 - lr * weight_decay)
        matrix.add_(update.to(matrix.dtype), alpha=-0.2 * lr * math.sqrt(max(matrix.shape)))


def orthogonalised(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix of the same singular vectors with singular values of about 1, by Newton and Schulz.

    X <- a X + (b A + c A^2) X with A = X X^T, starting from X / |X|.
    """
    x = matrix.to(dtype)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    x = x / x.norm().clamp(min=LEAST_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x
