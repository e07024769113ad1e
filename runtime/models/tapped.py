"""A target that keeps hidden states in its cache as it decodes, for heads that draft from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ..cache import KeyValueCache
from ..feature_cache import FeatureCache
from .bits import bits, is_kernels
from .block import RoundHead
from .eagle import EagleHead
from .exit import ExitModel
from .forward import CausalModel, ForwardInput, LeftStates
from .graphed import GraphedModel, as_loaded
from .lean import LeanModel
from .places import rows_of


class TappedModel:
    """A lean model whose every forward also writes the hidden states of its tokens beside their keys and values.

    So after a verification the features of accepted tokens lie where the tokens do: they cost one copy and no forward.
    """

    def __init__(self, model: LeanModel, after: Sequence[int]) -> None:
        """Share all weights of `model`.

        Args:
            model: the target.
            after: how many layers each of the wanted hidden states has passed, 0 being the embedding.

        Raises:
            ModelError: the model has fewer layers.
        """
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
        """Return the last hidden states where one call runs all layers and writes what is kept; None else."""
        features = cache.features
        if not (is_kernels(features) and features.dtype == torch.bfloat16 and features.is_contiguous()):
            return None
        return self._model.through_at_once(step, cache, kept=(self._numbers, bits(features)))

    def can_resume(self, left: LeftStates) -> bool:
        """Whether a forward can go on from there: the layers are the model's own, and it has more."""
        return self._model.can_resume(left)

    @torch.inference_mode()
    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        """Return what `forward` does, by the layers behind `left` alone; writes their part of the cache."""
        assert isinstance(cache, FeatureCache)
        return self._written_one_by_one(step, cache, left)

    def _written_one_by_one(self, step: ForwardInput, cache: FeatureCache, left: LeftStates | None) -> Tensor:
        rows, passed = rows_of(step, cache), 0 if left is None else left.layers
        for count, hidden in enumerate(self._model.stream(step, cache, left), start=passed):
            if count in self._after:
                cache.write_part(rows, count, hidden)
        return self._model.answer(step, hidden)


def tapped_for(target: CausalModel, drafters: Iterable[CausalModel], also: Iterable[int] = ()) -> CausalModel:
    """Return the target as these drafters need it: itself where none of them is a head.

    Args:
        target: whose hidden states are wanted.
        drafters: that are to draft beside it.
        also: how many layers hidden states have passed that somebody else reads, as a pivot classifier does.

    Raises:
        ModelError: hidden states are wanted of another kind of model than the lean forward knows.
    """
    after = sorted({count for drafter in drafters for count in reads_of(drafter)} | set(also))
    if not after:
        return target
    own = require_lean(target)
    if isinstance(target, GraphedModel):
        return target.keeping(tuple(after), lambda: TappedModel(own, after))
    return TappedModel(own, after)


def reads_of(drafter: CausalModel) -> tuple[int, ...]:
    """Return how many of the target's layers each hidden state a drafter reads has passed; none of a model."""
    own = as_loaded(drafter)
    return own.reads if isinstance(own, EagleHead | RoundHead) else ()


def is_beside_target(drafter: CausalModel) -> bool:
    """Whether a drafter works on what its target keeps of committed text: then it is in no stack."""
    return isinstance(as_loaded(drafter), ExitModel) or bool(reads_of(drafter))


def require_lean(target: CausalModel) -> LeanModel:
    """Return the target.

    Raises:
        ModelError: it is none whose hidden states can be read.
    """
    own = as_loaded(target)
    if not isinstance(own, LeanModel):
        raise ModelError(
            "heads and exits read hidden states, which only the lean forward of the Llama kind shows, and this target "
            f"runs as {target.regime}; leave the drafter out"
        )
    return own
