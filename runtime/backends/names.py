"""The names of backends, and which one decodes plainly on a device."""

from __future__ import annotations

from typing import Literal

import torch

from ..models.kernels.jitted import runs_triton

Name = Literal["cpu", "torch", "cuda_graph"]


def name_on(device: torch.device) -> Name:
    """Return the backend of plain decoding on a device, of a model whose attention our kernels compute there."""
    if device.type == "cpu":
        return "cpu"
    return "cuda_graph" if runs_triton(device) else "torch"
