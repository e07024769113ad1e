"""A target that stores hidden states in its cache as it decodes, for heads that draft from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from .bits import bits, is_kernels
from .block import RoundHead
from .eagle import EagleHead
from .exit import ExitModel
from .forward import CausalModel, ForwardInput, LeftStates
from .graphed import GraphedModel, as_loaded
from .kv_cache import FeatureCache, KeyValueCache
from .lean import LeanModel
from .places import rows_of


class TappedModel:
    """A lean model that also writes hidden states beside keys and values."""

    def __init__(self, model: LeanModel, after: Sequence[int]) -> None:
        """Share a model's weights; `after` are layers, 0 being the embedding; ModelError where it has fewer."""
        model.require_layers(after)
        self.regime, self.dtype, self.device = model.regime, model.dtype, model.device
        self.vocabulary, self.longest_context, self.attention = (
            model.vocabulary,
            model.longest_context,
            model.attention,
        )
        self.gallery, self.reads_trees = model.gallery, model.reads_trees
        self._model, self._after = model, tuple(after)
        self._numbers = np.array(after, dtype=np.int64)

    def new_cache(self, slots: int, capacity: int) -> FeatureCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_feature_cache(slots, capacity, self._after)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        assert isinstance(cache, FeatureCache)
        last = self._at_once(step, cache)
        if last is not None:
            return self._model.answer(step, last)
        if step.tree is not None:  # products of captured forwards may write over what a layer has left
            return self._written_one_by_one(step, cache, None)
        kept: dict[int, Tensor] = {}
        for count, hidden in enumerate(self._model.stream(step, cache)):
            if count in self._after:
                kept[count] = hidden
        cache.write_features(rows_of(step, cache), torch.cat([kept[count] for count in self._after], dim=-1))
        return self._model.answer(step, hidden)

    def _at_once(self, step: ForwardInput, cache: FeatureCache) -> Tensor | None:
        """Return the last hidden states where one call runs all layers and writes the features; None elsewhere."""
        features = cache.features
        if not (is_kernels(features) and features.dtype == torch.bfloat16 and features.is_contiguous()):
            return None
        return self._model.through_at_once(step, cache, kept=(self._numbers, bits(features)))

    def can_resume(self, left: LeftStates) -> bool:
        """Return whether a forward can continue from there: the layers are the model's own, and it has more."""
        return self._model.can_resume(left)

    @torch.inference_mode()
    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        """Do what `forward` does by the layers after `left` alone; writes their part of the cache."""
        assert isinstance(cache, FeatureCache)
        return self._written_one_by_one(step, cache, left)

    def _written_one_by_one(self, step: ForwardInput, cache: FeatureCache, left: LeftStates | None) -> Tensor:
        rows, passed = rows_of(step, cache), 0 if left is None else left.layers
        for count, hidden in enumerate(self._model.stream(step, cache, left), start=passed):
            if count in self._after:
                cache.write_part(rows, count, hidden)
        return self._model.answer(step, hidden)


def tapped_for(target: CausalModel, drafters: Iterable[CausalModel], also: Iterable[int] = ()) -> CausalModel:
    """Return the target as heads among the drafters need it, itself without any; `also` are layers for other readers.

    ModelError: hidden states are needed of a model other than the lean forward.
    """
    after = sorted({count for drafter in drafters for count in reads_of(drafter)} | set(also))
    if not after:
        return target
    own = require_lean(target)
    if isinstance(target, GraphedModel):
        return target.keeping(tuple(after), lambda: TappedModel(own, after))
    return TappedModel(own, after)


def reads_of(drafter: CausalModel) -> tuple[int, ...]:
    """Return how many of the target's layers each hidden state a drafter reads has passed; none for a model."""
    own = as_loaded(drafter)
    return own.reads if isinstance(own, EagleHead | RoundHead) else ()


def is_beside_target(drafter: CausalModel) -> bool:
    """Return whether a drafter works on its target's cached text: then it is in no stack."""
    return isinstance(as_loaded(drafter), ExitModel) or bool(reads_of(drafter))


def require_lean(target: CausalModel) -> LeanModel:
    """Return the target as a lean model; ModelError where its hidden states cannot be read."""
    own = as_loaded(target)
    if not isinstance(own, LeanModel):
        raise ModelError(
            "heads and exits read hidden states, which only the lean forward of the Llama kind shows, and this target "
            f"runs as {target.regime}; leave the drafter out"
        )
    return own
