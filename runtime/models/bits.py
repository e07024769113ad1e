"""Tensors of a CPU as compiled kernels read and write them: by the bits of their numbers."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

KNOWN = "known_bits"  # attribute of a tensor whose bits were asked for; a copy of it would hold bits of another memory
BITS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32}


def is_kernels(x: Tensor) -> bool:
    """Return whether kernels may take a tensor: it lies here, and nobody traces or derives what is done to it."""
    return x.is_cpu and x.dtype in BITS and not x.requires_grad and not torch.compiler.is_compiling()


def bits_for_kernels(x: Tensor) -> NDArray[Any] | None:
    """Return the bits of a tensor, in memory of its own where it is not contiguous; None where kernels may not take it.

    Of one that holds them torch is asked nothing.
    """
    known: NDArray[Any] | None = vars(x).get(KNOWN)
    if known is not None:
        return known
    return bits(x.contiguous()) if is_kernels(x) else None


def bits(x: Tensor) -> NDArray[Any]:
    """Return the same memory as unsigned numbers of the same length."""
    numbers: NDArray[Any] = x.view(BITS[x.dtype]).numpy()
    return numbers


def know(x: Tensor, numbers: NDArray[Any]) -> None:
    """Let a contiguous tensor hold its bits, (any,), which lie in the same memory."""
    vars(x)[KNOWN] = numbers.reshape(x.shape)


def bits_kept(x: Tensor) -> NDArray[Any]:
    """Return the bits of a contiguous tensor that is asked for often; the tensor itself holds them from then on."""
    known: NDArray[Any] | None = vars(x).get(KNOWN)
    if known is None:
        known = vars(x)[KNOWN] = bits(x)
    return known


def bits_of_new(shape: tuple[int, int, int]) -> tuple[Tensor, NDArray[Any]]:
    """Return a new tensor of bfloat16, and its bits with the first two dimensions in one."""
    made = torch.empty(shape, dtype=torch.bfloat16)
    numbers: NDArray[Any] = made.view(torch.uint16).numpy()
    vars(made)[KNOWN] = numbers
    return made, numbers.reshape(-1, shape[2])
