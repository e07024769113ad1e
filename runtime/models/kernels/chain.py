"""Launches that begin while the kernel in front of them still runs: a GPU's short step is mostly waiting for the next.

A kernel's programs may be placed, and read what nobody writes, before the kernel in front of it is done. What that one
wrote they read behind `take_turn`, which every program of a chained kernel calls before it reads or writes anything
that another kernel writes or reads. So whatever stands in front of the kernel in front is done by then, too.

Source: NVIDIA CUDA programming guide, "Programmatic dependent launch and synchronization".
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from .jitted import on_device

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

HOPPER = (9, 0)  # the first compute capability whose kernels may begin early


def chained(device: torch.device) -> dict[str, bool]:
    """Return what a launch of a kernel that takes its turn is told besides its own arguments."""
    return {"is_chained": True, "launch_pdl": True} if begins_early(device) else {"is_chained": False}


@lru_cache
def begins_early(device: torch.device) -> bool:
    """Return whether kernels on a device may begin before those in front of them are done."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER


@on_device()
def let_next_begin(
    is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Let the kernel behind this one begin as soon as all programs of this one have come here."""
    if is_chained:
        tl.extra.cuda.gdc_launch_dependents()


@on_device()
def take_turn(
    is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Wait until the kernel in front is done, and what it wrote is there."""
    if is_chained:
        tl.extra.cuda.gdc_wait()
