"""A linear layer whose weight is laid out once for its device.

On a CPU with bfloat16 instructions bf16 weights lie as our kernels read them (`bfloat16.py`), on others in oneDNN's
blocked layout: otherwise torch reorders them at every call, which costs more than the product of a few rows. float32
weights whose lower halves are zero are stored as the upper ones, for few rows, as verification and batches need them:
reading bounds such products, and no library multiplies float32 rows by bfloat16 weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import bfloat16
from .bfloat16 import BFloat16Product, KernelProduct
from .kernels.few_rows import product, shared_product
from .kernels.threads import shared_by
from .packed import PackedProduct


class Projection:
    """x -> x W^T + b over the last dimension of a two-dimensional input."""

    __slots__ = ("_bias", "_few_rows", "_packed", "_weight", "by_kernels", "shape")

    by_kernels: KernelProduct | None

    def __init__(self, weight: Tensor | PackedProduct, bias: Tensor | None = None) -> None:
        """Take a weight (out, in), or a packed product with its bias, and an (out,) bias, or none."""
        self.shape = tuple(weight.shape)
        self._bias = bias
        if isinstance(weight, PackedProduct):
            self.by_kernels, self._packed, self._few_rows, self._weight = weight, None, None, None
            return
        self.by_kernels = BFloat16Product(weight, bias) if bfloat16.is_for(weight) else None
        self._packed = _packed(weight) if self.by_kernels is None else None
        self._few_rows = few_rows_of(weight)
        is_as_given = self.by_kernels is None and self._packed is None and self._few_rows is None
        self._weight = weight if is_as_given else None

    @property
    def weight(self) -> Tensor | None:
        """The weight (out, in) as given; None where it is laid out differently."""
        return self._weight

    @property
    def bias(self) -> Tensor | None:
        """The bias (out,)."""
        return self._bias

    def __call__(self, x: Tensor) -> Tensor:
        """Return (rows, out) for (rows, in)."""
        if self.by_kernels is not None:
            return self.by_kernels(x)
        if self._few_rows is not None:
            product = self._few_rows(x)
            return product if self._bias is None else product.add_(self._bias)
        if self._packed is None:
            assert self._weight is not None
            return F.linear(x, self._weight, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x W^T + b."""
        if self.by_kernels is not None:
            return self.by_kernels(x, residual)
        if self._few_rows is not None:
            return self(x).add_(residual)
        if self._packed is None:
            return residual + self(x)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")
        return y

    def add_into(self, residual: Tensor, x: Tensor) -> Tensor:
        """Do what `added_to` does, over the residual where the product can: one launch less."""
        if self._weight is None or self._bias is not None:
            return self.added_to(residual, x)
        return residual.addmm_(x, self._weight.t())


def _packed(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's layout where that is supported and pays; None elsewhere."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_available or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
    return packed


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
