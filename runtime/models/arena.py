"""Memory that is used again and again: every view of it begins at the same place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Arena:
    """Hands out views that overlap: whoever writes last owns the content.

    A view stays valid when the arena grows; it keeps the memory it was made of.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Hold nothing yet."""
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def reserve(self, size: int) -> None:
        """Have room for views of `size` numbers, and for no more where it has to grow."""
        if size > self._flat.numel():
            self._flat = self._flat.new_empty(size)

    def view(self, shape: Sequence[int]) -> Tensor:
        """Return a contiguous view of that shape with any content."""
        size = math.prod(shape)
        if size > self._flat.numel():
            self._flat = self._flat.new_empty(max(size, 2 * self._flat.numel()))
        return self._flat[:size].view(*shape)
