"""A feature-level head as drafter: trees grow on it as on a model; committed text comes with the target's features."""

from __future__ import annotations

import torch

from ..models.block import BlockHead
from ..models.eagle import EagleHead
from ..models.exit import ExitModel
from ..models.forward import CausalModel, ForwardInput
from ..models.recycling import RecyclingHead
from .block import BlockDrafter
from .exit import ExitDrafter
from .features import FeatureDrafter
from .model import ModelDrafter
from .recycling import RecyclingDrafter


class HeadDrafter(FeatureDrafter):
    """Runs a head over its own cache, beside a target that keeps features; see `tapped_for`."""

    def __init__(self, head: EagleHead, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        """Allocate the head's cache as a `ModelDrafter` does; `attach` comes before the first text."""
        super().__init__(head, head.reads, slots=slots, capacity=capacity, on_device=on_device)
        self._head = head

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text with the target's features; return its logits."""
        features = self.features_of(step)
        self.forwards += 1
        return self._head.read(features, step, self._cache)


def model_drafter(model: CausalModel, *, slots: int, capacity: int) -> ModelDrafter:
    """Return the drafter of a model, a head, a block drafter, an exit, or of recycled successors."""
    if isinstance(model, EagleHead):
        return HeadDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, BlockHead):
        return BlockDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, RecyclingHead):
        return RecyclingDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, ExitModel):
        return ExitDrafter(model, slots=slots, capacity=capacity)
    return ModelDrafter(model, slots=slots, capacity=capacity)
