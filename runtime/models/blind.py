"""A text model beside a target with vision: it reads a placeholder where the target reads an image."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...planner.records.image_ids import IMAGE_IDS
from ..cache import KeyValueCache
from .forward import CausalModel, ForwardInput


class BlindModel:
    """Any causal language model, with a token it knows in place of every part of an image."""

    gallery = None

    def __init__(self, model: CausalModel, placeholder: int) -> None:
        self.regime, self.dtype, self.device, self.attention = model.regime, model.dtype, model.device, model.attention
        self.reads_trees: bool = getattr(model, "reads_trees", False)  # where a captured forward tells by them
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self._model, self._placeholder = model, placeholder

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        told = step.tokens.masked_fill(step.tokens >= IMAGE_IDS, self._placeholder)
        return self._model.forward(replace(step, tokens=told, packed=None), cache)
