"""Common to drafters beside a target: committed text comes with the target's own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...errors import ModelError
from ..models.bits import bits, is_kernels
from ..models.forward import CausalModel, ForwardInput
from ..models.kv_cache import FeatureCache, KeyValueCache
from ..models.whole_head import TargetStates
from .model import ModelDrafter

NOT_ATTACHED = "a head drafts beside its target; let the decoder attach it, or call attach first"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFeatures:
    """The hidden states that a target caches, and which of them a drafter reads."""

    features: torch.Tensor  # (slots, capacity, any)
    wanted: torch.Tensor | None  # which of the last; None: all

    def before(self, step: ForwardInput) -> torch.Tensor:
        """Return (batch, n, wanted): the states at the token before each token of a forward."""
        given = self.features
        slots = torch.arange(step.first_slot, step.first_slot + len(step.tokens), device=given.device)
        places = (step.columns - 1).clamp(min=0, max=given.shape[1] - 1)  # padding may lie beyond
        features = given[slots.unsqueeze(1), places]
        return features if self.wanted is None else features.index_select(2, self.wanted)


class FeatureDrafter(ModelDrafter):
    """Drafts beside a target that taps features; see `tapped_for`. Attach it before the first text.

    Accepted tokens are read again with the target's own features, so that a draft is a function of the committed text
    alone. `reads`: after how many of the target's layers the drafter reads hidden states.
    """

    def __init__(
        self, model: CausalModel, reads: tuple[int, ...], *, slots: int, capacity: int, on_device: bool | None = None
    ) -> None:
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._reads = reads
        self._given: GivenFeatures | None = None

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache; ModelError if it lacks features that the drafter reads."""
        self._given = self.features_in(cache)

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        """Return what the drafter reads of a target's cache; ModelError if the cache lacks some of it."""
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
        """Return the attached features for kernels; None where these do not support them."""
        given = self._given
        if given is None or not is_kernels(given.features) or given.features.dtype != torch.bfloat16:
            return None
        width = given.features.shape[2]
        places = np.arange(width) if given.wanted is None else given.wanted.numpy()
        return TargetStates(features=bits(given.features), places=places)

    @property
    def given(self) -> GivenFeatures:
        """The features of the attached target."""
        if self._given is None:
            raise ModelError(NOT_ATTACHED)
        return self._given

    def features_of(self, step: ForwardInput) -> torch.Tensor:
        """Return (batch, n, len(reads) * hidden): the target's features at the token before each of a forward."""
        return self.given.before(step)
