"""Products of weights in few bits on a CPU, by kernels of ours; x is rounded to bytes, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ModelError
from .bits import bits
from .kernels.emitted import LANES
from .kernels.packed_dots import BYTE, DOTS, NIBBLE, PACKINGS, Packing, has_byte_dots
from .kernels.packed_rows import packed_product
from .kernels.threads import can_share, shared_by

Whole, Scales = NDArray[np.uint8], NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight (out, in) as kernels read it: scale * (number - zero), or scale * number - least of its group."""

    packing: Packing
    zero: int  # 0 where groups have least numbers
    shape: tuple[int, int]
    panels: Whole  # (out / LANES, bytes)
    scales: Scales  # (out / LANES, groups * LANES), twice as many with least numbers

    @property
    def kind(self) -> tuple[Packing, int, int]:
        """What is equal for weights that one call can multiply by."""
        return self.packing, self.zero, self.shape[1]


def packed(
    numbers: Whole, scales: NDArray[np.float32], packing: Packing, *, zero: int = 0,
    leasts: NDArray[np.float32] | None = None,
) -> PackedWeight:  # fmt: skip
    """Return a weight as kernels read it.

    Args:
        numbers: (out, in), `out` a multiple of LANES, `in` of a group.
        scales: (out, groups).
        packing: how numbers are stored.
        zero: the number that means none; less than 1 only with least numbers.
        leasts: (out, groups), what is taken away; None where `zero` says it.

    Raises:
        ModelError: a scale is too large for float16.
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


class PackedProduct:
    """x -> x W^T + b."""

    __slots__ = ("_bias", "_no_residual", "_weights", "shape")

    def __init__(self, weights: Sequence[PackedWeight], bias: Tensor | None = None) -> None:
        """Take weights (any, in) that stand below each other, and a bias of all their rows, or none."""
        self._weights = [joined(list(alike)) for _, alike in groupby(weights, key=lambda weight: weight.kind)]
        self.shape = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        self._no_residual = np.empty((0, self.shape[0]), np.uint16)
        self._bias = np.empty(0, np.uint16) if bias is None else bits(bias.detach().contiguous())

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return (rows, out) for (rows, in), added to the residual (rows, out) if there is one.

        Raises:
            ModelError: these are not numbers in bfloat16, or not as many as the weight has columns.
        """
        if x.dtype != torch.bfloat16 or x.shape[1:] != (self.shape[1],):
            raise ModelError(
                f"a weight {self.shape} in few bits is multiplied by {tuple(x.shape)} in {x.dtype}; "
                "the model's configuration and its weights do not fit together"
            )
        out = torch.empty((len(x), self.shape[0]), dtype=torch.bfloat16)
        given, written, first = bits(x.contiguous()), bits(out), 0
        added = self._no_residual if residual is None else bits(residual.contiguous())
        is_shared = shared_by(torch.get_num_threads())
        for weight in self._weights:
            last = first + weight.shape[0]
            packed_product(
                given, PACKINGS.index(weight.packing), weight.packing.group, weight.zero,
                weight.panels.ctypes.data, weight.panels.strides[0], weight.scales.ctypes.data, weight.scales.strides[0],
                self._bias[first:last], added[:, first:last], written[:, first:last], is_shared,
            )  # fmt: skip
            first = last
        return out


def can_pack(rows: int, columns: int) -> bool:
    """Return whether our kernels take a weight (rows, columns)."""
    return rows % LANES == 0 and all(columns % packing.group == 0 for packing in PACKINGS)


def has_packed_products() -> bool:
    """Return whether our kernels multiply by such weights on this machine."""
    return has_byte_dots() and can_share(torch.get_num_threads())
