"""Launches that begin while the previous kernel still runs: a GPU's short step mostly waits for the next.

Programs may start, and read what no kernel writes, before the previous kernel ends. All else they touch after
`take_turn`, which every program of a chained kernel calls. So all kernels before the previous one have ended, too.

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
    """Return the extra launch arguments of a kernel that calls `take_turn`."""
    return {"is_chained": True, "launch_pdl": True} if begins_early(device) else {"is_chained": False}


@lru_cache
def begins_early(device: torch.device) -> bool:
    """Return whether kernels on a device may begin before the previous ones end."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER


@on_device()
def let_next_begin(
    is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Let the next kernel begin as soon as all programs of this one have come here."""
    if is_chained:
        tl.extra.cuda.gdc_launch_dependents()


@on_device()
def take_turn(
    is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Wait until the previous kernel has ended and its results are visible."""
    if is_chained:
        tl.extra.cuda.gdc_wait()
