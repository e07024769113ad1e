"""Root-mean-square norms as the families of the Llama kind have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """x / rms(x) * weight over the last dimension.

    A weight in a wider number format than the input is multiplied before the result is rounded to the input's, as
    Gemma does it.

    Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4.
    """

    weight: Tensor  # (size,), or (heads, size): one line for every head
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Return (..., size) for (..., size)."""
        if x.dtype == self.weight.dtype:
            return self._normed(x)
        return self._normed(x.to(self.weight.dtype)).to(x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight
