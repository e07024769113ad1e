"""A feature-level head as drafter: trees grow on it as on a model; committed text comes with the target's features."""

from __future__ import annotations

import torch

from ...errors import ModelError
from ..cache import KeyValueCache
from ..feature_cache import FeatureCache
from ..models.eagle import EagleHead
from ..models.forward import CausalModel, ForwardInput
from .model import ModelDrafter


class HeadDrafter(ModelDrafter):
    """Runs a head over its own cache, beside a target that keeps features; see `tapped_for`.

    Accepted tokens are read again with the target's own features, so that a proposal is a function of the committed
    text alone.
    """

    def __init__(self, head: EagleHead, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        """Allocate the head's cache as a `ModelDrafter` does; `attach` comes before the first text."""
        super().__init__(head, slots=slots, capacity=capacity, on_device=on_device)
        self._head = head
        self._given: FeatureCache | None = None
        self._wanted: torch.Tensor | None = None  # columns of the target's features; None: all

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache.

        Raises:
            ModelError: it does not keep what the head reads.
        """
        kept = cache.after if isinstance(cache, FeatureCache) else ()
        if not isinstance(cache, FeatureCache) or not set(self._head.reads) <= set(kept):
            raise ModelError(
                f"the head reads hidden states after {self._head.reads} layers and the target keeps those after "
                f"{kept}; decode with tapped_for(target, heads)"
            )
        self._given = cache
        width = cache.features.shape[2] // len(kept)
        places = [kept.index(count) * width + at for count in self._head.reads for at in range(width)]
        is_all = kept == self._head.reads
        self._wanted = None if is_all else torch.tensor(places, device=cache.features.device)

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text with the target's features; return its logits."""
        if self._given is None:
            raise ModelError("a head drafts beside its target; let the decoder attach it, or call attach first")
        given = self._given.features
        slots = torch.arange(step.first_slot, step.first_slot + len(step.tokens), device=given.device)
        features = given[slots.unsqueeze(1), (step.columns - 1).clamp(min=0)]
        if self._wanted is not None:
            features = features.index_select(2, self._wanted)
        self.forwards += 1
        return self._head.read(features, step, self._cache)


def model_drafter(model: CausalModel, *, slots: int, capacity: int) -> ModelDrafter:
    """Return the drafter of a model, or of a head."""
    if isinstance(model, EagleHead):
        return HeadDrafter(model, slots=slots, capacity=capacity)
    return ModelDrafter(model, slots=slots, capacity=capacity)
