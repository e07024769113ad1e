"""Memory that is used again and again: every view of it begins at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class Arena:
    """Hands out overlapping views: the last write decides. Older views stay valid when it grows, on their memory."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(0, dtype=dtype, device=device)
        self._size = 0
        self._numbers: NDArray[Any] | None = None

    def reserve(self, size: int) -> None:
        """Make room for views of `size` numbers, and for no more."""
        if size > self._size:
            self._grow(size)

    def fit(self, size: int) -> None:
        """Make room for views of `size` numbers; at least double where it grows."""
        if size > self._size:
            self._grow(max(size, 2 * self._size))

    def view(self, shape: Sequence[int]) -> Tensor:
        """Return a contiguous view of that shape with any content."""
        size, steps = 1, [0] * len(shape)
        for place in range(len(shape) - 1, -1, -1):
            steps[place] = size
            size *= shape[place]
        self.fit(size)
        return self._flat.as_strided(tuple(shape), steps)  # one call; most views are made behind a forward

    def numbers(self, kind: torch.dtype) -> NDArray[Any]:
        """Return all of it, (any,), as another type of the same size; on the host, valid until it grows."""
        if self._numbers is None:
            self._numbers = self._flat.view(kind).numpy()
        return self._numbers

    def _grow(self, size: int) -> None:
        self._flat, self._size, self._numbers = self._flat.new_empty(size), size, None
