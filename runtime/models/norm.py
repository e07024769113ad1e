"""Root-mean-square norms as the families of the Llama kind have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .bits import bits, is_kernels
from .kernels.host_rows import norm_rows

MOST_COMPILED = 2**18  # numbers: beyond, torch's ten calls take less than the arithmetic of one thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """x / rms(x) * weight over the last dimension.

    A weight in a wider number format than the input is multiplied before the result is rounded to the input's, as
    Gemma does it.

    Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4.
    """

    weight: Tensor  # (size,), or (heads, size): one line for every head
    eps: float
    _bits: NDArray[Any] | None = field(init=False, repr=False, compare=False)  # of the weight, where kernels take it

    def __post_init__(self) -> None:
        own = self.weight.detach().view(-1, self.weight.shape[-1])
        object.__setattr__(self, "_bits", bits(own) if is_kernels(own) else None)

    def __call__(self, x: Tensor) -> Tensor:
        """Return (..., size) for (..., size)."""
        if self._bits is not None and x.numel() <= MOST_COMPILED and x.is_contiguous() and is_kernels(x):
            return self._compiled(x, self._bits)
        if x.dtype == self.weight.dtype:
            return self._normed(x)
        return self._normed(x.to(self.weight.dtype)).to(x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight

    def _compiled(self, x: Tensor, weight: NDArray[Any]) -> Tensor:
        """Return the same by one compiled call; it rounds once."""
        out, size = torch.empty_like(x), x.shape[-1]
        norm_rows(bits(x).reshape(-1, size), weight, self.eps, bits(out).reshape(-1, size))
        return out
