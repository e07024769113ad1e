"""What drafters beside a target have in common: committed text comes with the target's own hidden states."""

from __future__ import annotations

import numpy as np
import torch

from ...errors import ModelError
from ..cache import KeyValueCache
from ..feature_cache import FeatureCache
from ..models.bits import bits_kept, is_kernels
from ..models.forward import CausalModel, ForwardInput
from ..models.whole_head import TargetStates
from .model import ModelDrafter


class FeatureDrafter(ModelDrafter):
    """Drafts beside a target that keeps features; see `tapped_for`.

    Accepted tokens are read again with the target's own features, so that a proposal is a function of the committed
    text alone.
    """

    def __init__(
        self, model: CausalModel, reads: tuple[int, ...], *, slots: int, capacity: int, on_device: bool | None = None
    ) -> None:
        """Allocate the cache as a `ModelDrafter` does; `attach` comes before the first text.

        Args:
            model: the drafter.
            reads: how many of the target's layers each hidden state it reads has passed.
            slots: sequences at once.
            capacity: tokens of each.
            on_device: where trees grow, True for the model's device; None: there unless it is the CPU.
        """
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._reads = reads
        self._given: FeatureCache | None = None
        self._wanted: torch.Tensor | None = None  # columns of the target's features; None: all

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache.

        Raises:
            ModelError: it does not keep what the drafter reads.
        """
        kept = cache.after if isinstance(cache, FeatureCache) else ()
        if not isinstance(cache, FeatureCache) or not set(self._reads) <= set(kept):
            raise ModelError(
                f"the head reads hidden states after {self._reads} layers and the target keeps those after "
                f"{kept}; decode with tapped_for(target, heads)"
            )
        self._given = cache
        width = cache.features.shape[2] // len(kept)
        places = [kept.index(count) * width + at for count in self._reads for at in range(width)]
        is_all = kept == self._reads
        self._wanted = None if is_all else torch.tensor(places, device=cache.features.device)

    def target_states(self) -> TargetStates | None:
        """Return what the attached cache keeps as kernels read it; None where they do not take it."""
        given = self._given
        if given is None or not is_kernels(given.features) or given.features.dtype != torch.bfloat16:
            return None
        width = given.features.shape[2]
        places = np.arange(width) if self._wanted is None else self._wanted.numpy()
        return TargetStates(features=bits_kept(given.features), places=places)

    def features_of(self, step: ForwardInput) -> torch.Tensor:
        """Return (batch, n, len(reads) * hidden): the target's features at the token before each of a forward."""
        if self._given is None:
            raise ModelError("a head drafts beside its target; let the decoder attach it, or call attach first")
        given = self._given.features
        slots = torch.arange(step.first_slot, step.first_slot + len(step.tokens), device=given.device)
        before = (step.columns - 1).clamp(min=0, max=given.shape[1] - 1)  # padding may lie beyond
        features = given[slots.unsqueeze(1), before]
        return features if self._wanted is None else features.index_select(2, self._wanted)
