"""bfloat16 products by our kernels, on a CPU that has instructions for them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from .bits import bits
from .kernels.bfloat16_dots import STEP, WIDTH, has_dots
from .kernels.bfloat16_rows import product
from .kernels.threads import can_share, shared_by


class KernelProduct:
    """x -> x W^T + b by kernels that know a weight by its address."""

    __slots__ = ("bias", "no_residual", "shape")

    def __init__(self, rows: int, columns: int, bias: Tensor | None) -> None:
        self.shape = rows, columns
        self.no_residual = np.empty((0, rows), np.uint16)
        self.bias = np.empty(0, np.uint16) if bias is None else bits(bias.detach().contiguous())

    @property
    @abstractmethod
    def address(self) -> int:
        """Where the weight lies, as `product` takes it."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return (rows, out) for bfloat16 (rows, in), plus a residual (rows, out); ModelError for any other input."""
        if x.dtype != torch.bfloat16 or x.shape[1:] != (self.shape[1],):
            raise ModelError(
                f"a weight {self.shape} in bfloat16 is multiplied by {tuple(x.shape)} in {x.dtype}; "
                "the model's configuration and its weights do not fit together"
            )
        out = torch.empty((len(x), self.shape[0]), dtype=torch.bfloat16)
        added = self.no_residual if residual is None else bits(residual.contiguous())
        product(bits(x.contiguous()), self.address, self.bias, added, bits(out), shared_by(torch.get_num_threads()))
        return out


class BFloat16Product(KernelProduct):
    """A kernel product of a weight (out, in) in bfloat16 that `is_for` accepts."""

    __slots__ = ("_weight",)

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        rows, columns = weight.shape
        super().__init__(rows, columns, bias)
        panels = weight.detach().contiguous().view(rows // WIDTH, WIDTH, columns // 2, 2).transpose(1, 2)
        self._weight = panels.contiguous()  # (out / WIDTH, in / 2, WIDTH, 2), as kernels read it

    @property
    def address(self) -> int:
        """Where the weight's panels lie, as long as this object lives."""
        return self._weight.data_ptr()


def is_for(weight: Tensor) -> bool:
    """Return whether our kernels work on a weight (out, in) on this machine."""
    is_ours = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    is_whole = weight.shape[0] % WIDTH == 0 and weight.shape[1] % STEP == 0
    return is_ours and is_whole and has_dots() and can_share(torch.get_num_threads())
