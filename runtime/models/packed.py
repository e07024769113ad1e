"""Products of weights in few bits on a CPU, by our kernels; x is rounded to bytes, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ModelError
from .bfloat16 import KernelProduct
from .kernels.bfloat16_dots import has_dots
from .kernels.bfloat16_rows import IS_PACKED
from .kernels.emitted import LANES
from .kernels.packed_dots import BYTE, DOTS, NIBBLE, PACKINGS, Packing, has_byte_dots
from .kernels.threads import can_share

Whole = NDArray[np.uint8]
Scales = NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight (out, in) for kernels: scale * (number - zero), or scale * number - least of its group."""

    packing: Packing
    zero: int  # 0 where groups have least numbers
    shape: tuple[int, int]
    panels: Whole  # (out / LANES, bytes)
    scales: Scales  # (out / LANES, groups * LANES), twice as many with least numbers

    @property
    def kind(self) -> tuple[Packing, int, int]:
        """What is equal for weights that one call can multiply by."""
        return self.packing, self.zero, self.shape[1]

    @property
    def part(self) -> tuple[int, ...]:
        """Its numbers for kernels, valid as long as it lives: see `PART`."""
        panels, scales, packing = self.panels, self.scales, self.packing
        first = PACKINGS.index(packing), packing.group, self.zero, self.shape[0]
        return *first, panels.ctypes.data, panels.strides[0], scales.ctypes.data, scales.strides[0]


def packed(
    numbers: Whole, scales: NDArray[np.float32], packing: Packing, *, zero: int = 0,
    leasts: NDArray[np.float32] | None = None,
) -> PackedWeight:  # fmt: skip
    """Return a weight for kernels from numbers (out, in) and scales (out, groups), whole panels and groups of them.

    `zero` is the number that means 0, or `leasts` (out, groups) are subtracted, with zero at 0. ModelError where a
    scale is too large for float16.
    """
    panels, length = len(numbers) // LANES, numbers.shape[1]
    if packing.bits == BYTE:
        bytes_ = numbers.reshape(panels, LANES, length // DOTS, DOTS).transpose(0, 2, 1, 3)
    else:
        halves = numbers.reshape(panels, LANES, length // (2 * DOTS), 2, DOTS).transpose(3, 0, 2, 1, 4)
        bytes_ = halves[0] | halves[1] << NIBBLE
    lines = np.stack([scales] if leasts is None else [scales, leasts], axis=1)  # (out, 1 or 2, groups)
    with np.errstate(over="ignore"):
        halved = lines.reshape(panels, LANES, *lines.shape[1:]).transpose(0, 3, 2, 1).astype(np.float16)
    if not np.isfinite(halved).all():
        raise ModelError(
            "a scale of quantised weights is beyond what float16 holds; run the model with --dtype bfloat16"
        )
    return PackedWeight(
        packing,
        zero,
        (len(numbers), length),
        np.ascontiguousarray(bytes_.reshape(panels, -1)),
        halved.reshape(panels, -1),
    )


def joined(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Return weights of one kind as one, below each other."""
    rows = sum(weight.shape[0] for weight in weights)
    return replace(
        weights[0],
        shape=(rows, weights[0].shape[1]),
        panels=np.concatenate([weight.panels for weight in weights]),
        scales=np.concatenate([weight.scales for weight in weights]),
    )


class PackedProduct(KernelProduct):
    """x -> x W^T + b."""

    __slots__ = ("_parts", "_weights")

    def __init__(self, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> None:
        """Take weights (any, in), one below the other, and a bias of all their rows, or none."""
        super().__init__(sum(weight.shape[0] for weight in weights), weights[0].shape[1], bias)
        self._weights = [joined(list(alike)) for _, alike in groupby(weights, key=lambda weight: weight.kind)]
        self._parts = np.array([weight.part for weight in self._weights])

    @property
    def address(self) -> int:
        """Where kernels read the weight's parts, as long as this object lives."""
        return self._parts.ctypes.data + IS_PACKED


def has_packed_products() -> bool:
    """Return whether our kernels multiply by such weights, and by bfloat16 ones, on this machine."""
    return has_dots() and has_byte_dots() and can_share(torch.get_num_threads())
