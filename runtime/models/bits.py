"""Tensors of a CPU as compiled kernels read and write them: by the bits of their numbers."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

BITS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32}


def is_kernels(x: Tensor) -> bool:
    """Return whether kernels may take a tensor: on the CPU, with nothing traced and no gradient."""
    return x.is_cpu and x.dtype in BITS and not x.requires_grad and not torch.compiler.is_compiling()


def bits_for_kernels(x: Tensor) -> NDArray[Any] | None:
    """Return the bits of a tensor, or of a contiguous copy; None where kernels may not take it."""
    return bits(x.contiguous()) if is_kernels(x) else None


def bits(x: Tensor) -> NDArray[Any]:
    """Return the same memory as unsigned numbers of the same length."""
    numbers: NDArray[Any] = x.view(BITS[x.dtype]).numpy()
    return numbers
