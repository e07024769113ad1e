"""What drafters beside a target have in common: committed text comes with the target's own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...errors import ModelError
from ..cache import KeyValueCache
from ..feature_cache import FeatureCache
from ..models.bits import bits, is_kernels
from ..models.forward import CausalModel, ForwardInput
from ..models.whole_head import TargetStates
from .model import ModelDrafter

NOT_ATTACHED = "a head drafts beside its target; let the decoder attach it, or call attach first"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFeatures:
    """What a target keeps of its hidden states, and what of that a drafter reads."""

    features: torch.Tensor  # (slots, capacity, any)
    wanted: torch.Tensor | None  # which of the last; None: all

    def before(self, step: ForwardInput) -> torch.Tensor:
        """Return (batch, n, wanted): what is kept of the token before each of a forward."""
        given = self.features
        slots = torch.arange(step.first_slot, step.first_slot + len(step.tokens), device=given.device)
        places = (step.columns - 1).clamp(min=0, max=given.shape[1] - 1)  # padding may lie beyond
        features = given[slots.unsqueeze(1), places]
        return features if self.wanted is None else features.index_select(2, self.wanted)


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
        self._given: GivenFeatures | None = None

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache.

        Raises:
            ModelError: it does not keep what the drafter reads.
        """
        self._given = self.features_in(cache)

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        """Return what a target's cache keeps for the drafter.

        Raises:
            ModelError: it keeps something else.
        """
        kept = cache.after if isinstance(cache, FeatureCache) else ()
        if not isinstance(cache, FeatureCache) or not set(self._reads) <= set(kept):
            raise ModelError(
                f"the head reads hidden states after {self._reads} layers and the target keeps those after "
                f"{kept}; decode with tapped_for(target, heads)"
            )
        width = cache.features.shape[2] // len(kept)
        places = [kept.index(count) * width + at for count in self._reads for at in range(width)]
        is_all = kept == self._reads
        wanted = None if is_all else torch.tensor(places, device=cache.features.device)
        return GivenFeatures(features=cache.features, wanted=wanted)

    def target_states(self) -> TargetStates | None:
        """Return what the attached cache keeps as kernels read it; None where they do not take it."""
        given = self._given
        if given is None or not is_kernels(given.features) or given.features.dtype != torch.bfloat16:
            return None
        width = given.features.shape[2]
        places = np.arange(width) if given.wanted is None else given.wanted.numpy()
        return TargetStates(features=bits(given.features), places=places)

    @property
    def given(self) -> GivenFeatures:
        """What the target keeps, once attached."""
        if self._given is None:
            raise ModelError(NOT_ATTACHED)
        return self._given

    def features_of(self, step: ForwardInput) -> torch.Tensor:
        """Return (batch, n, len(reads) * hidden): the target's features at the token before each of a forward."""
        return self.given.before(step)
