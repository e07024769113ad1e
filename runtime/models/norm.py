"""Root-mean-square norms as the families of the Llama kind have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .bits import bits, is_kernels
from .kernels.host_rows import norm_rows, shared_norm_rows
from .kernels.threads import MOST_ALONE, can_share, shared_by

MOST_COMPILED = 2**18  # numbers that one thread norms sooner than torch does with more, in ten calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """x / rms(x) * weight over the last dimension.

    A weight in a wider format than x is multiplied before the result is rounded to x's format, as Gemma does.

    Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4.
    """

    weight: Tensor  # (size,), or (lines, size): x has a line for each, one behind the other
    eps: float
    _bits: NDArray[Any] | None = field(init=False, repr=False, compare=False)  # of the weight, where kernels take it

    def __post_init__(self) -> None:
        own = self.weight.detach().view(-1, self.weight.shape[-1])
        object.__setattr__(self, "_bits", bits(own) if is_kernels(own) else None)

    @property
    def scale(self) -> NDArray[Any] | None:
        """The weight (lines, size) for kernels; None where they do not take it."""
        return self._bits

    def __call__(self, x: Tensor) -> Tensor:
        """Return (..., size) for (..., size)."""
        weight = self.scale_for(x)
        if weight is None:
            return self._by_torch(x)
        out, width = torch.empty_like(x), weight.size
        _kernel_for(x)(bits(x).reshape(-1, width), weight, self.eps, bits(out).reshape(-1, width))
        return out

    def norm_front(self, x: Tensor) -> None:
        """Norm the front of every row of x, (rows, at least lines * size), in place."""
        weight = self.scale_for(x)
        if weight is None:
            front = x[:, : self.weight.numel()].view(len(x), *self.weight.shape)
            front.copy_(self._by_torch(front))
        else:
            _kernel_for(x)(bits(x), weight, self.eps, bits(x))

    def scale_for(self, x: Tensor) -> NDArray[Any] | None:
        """Return the weight (lines, size) for a compiled call, which rounds once; None where torch norms x."""
        if not is_kernels(x) or not x.is_contiguous():
            return None
        return self._bits if x.numel() <= MOST_COMPILED or can_share(torch.get_num_threads()) else None

    def _by_torch(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return self._normed(x)
        return self._normed(x.to(self.weight.dtype)).to(x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


def _kernel_for(x: Tensor) -> Callable[[NDArray[Any], NDArray[Any], float, NDArray[Any]], None]:
    is_shared = x.numel() > MOST_ALONE and shared_by(torch.get_num_threads())
    return shared_norm_rows if is_shared else norm_rows
