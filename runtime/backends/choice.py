"""Which backend runs a target's rounds."""

from __future__ import annotations

from ..models.forward import CausalModel
from ..models.graphed import GraphedModel
from .base import Backend
from .cpu import CpuBackend
from .cuda_graph import CudaGraphBackend
from .torch import TorchBackend


def choose(target: CausalModel) -> type[Backend]:
    """Return the backend of a target as it was loaded: by its regime, then by its device."""
    if isinstance(target, GraphedModel):
        return CudaGraphBackend
    return CpuBackend if target.device.type == "cpu" else TorchBackend
