"""float32 products with bfloat16's weights for few rows on a CPU, as verification and batches need them.

In float32 half of each weight of a bfloat16 checkpoint is zeros. Our kernel (`kernels/few_rows.py`) reads the other
half: reading bounds such products, and no library multiplies float32 rows by bfloat16 weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels.few_rows import product, shared_product
from .kernels.threads import shared_by

MOST_ROWS = 64  # of the kernel; a library's product is faster at more
LEAST_ELEMENTS = 2**16  # of a weight: below, a call costs more than its product
WIDENED_ELEMENTS = 2**20  # of a weight, at once, for products of many rows


class FewRows:
    """x -> x W^T in float32."""

    __slots__ = ("_halves", "_weight")

    def __init__(self, weight: Tensor) -> None:
        """Take an (out, in) weight in bfloat16; out must be even."""
        self._weight = weight.detach().contiguous()
        self._halves = self._weight.view(torch.uint16).numpy()

    def __call__(self, x: Tensor) -> Tensor:
        """Return (rows, out) for (rows, in), in float32."""
        if len(x) > MOST_ROWS or torch.compiler.is_compiling():
            return self._of_many(x)
        out = torch.empty((len(x), len(self._weight)), dtype=torch.float32)
        multiply = shared_product if shared_by(torch.get_num_threads()) else product
        multiply(x.contiguous().numpy(), self._halves, out.numpy())
        return out

    def _of_many(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return F.linear(x, self._weight.float())
        at_once = max(1, WIDENED_ELEMENTS // self._weight.shape[1])
        out = torch.empty((len(x), len(self._weight)), dtype=torch.float32)
        for first in range(0, len(self._weight), at_once):
            columns = slice(first, first + at_once)
            torch.mm(x, self._weight[columns].float().t(), out=out[:, columns])
        return out


def few_rows_of(weight: Tensor) -> FewRows | None:
    """Return a weight (out, in) for our kernel; None where bfloat16 does not hold it, or the kernel does not fit."""
    is_meant = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST_ELEMENTS
    if not is_meant or len(weight) % 2:
        return None
    halves = weight.detach().to(torch.bfloat16)
    return FewRows(halves) if torch.equal(halves.float(), weight) else None
