"""A drafter with its target's tokenizer and a table of another size.

Families pad their tables by size: Qwen2.5 has the same tokens in 151,936 rows up to 3 B parameters, 152,064 above.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache import KeyValueCache
from .forward import CausalModel, ForwardInput


class FittedModel:
    """Any causal language model, used with a vocabulary that differs from its table by padding alone."""

    gallery = None

    def __init__(self, model: CausalModel, vocabulary: int) -> None:
        """Wrap a model; `vocabulary` is its target's."""
        self.regime, self.dtype, self.device, self.attention = model.regime, model.dtype, model.device, model.attention
        self.reads_trees: bool = getattr(model, "reads_trees", False)  # where a captured forward tells by them
        self.vocabulary, self.longest_context = vocabulary, model.longest_context
        self._model, self._lacks = model, vocabulary - model.vocabulary

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's.

        It reads its first token for ids that its table lacks, and never drafts them; ids that the target lacks are cut.
        """
        if self._lacks <= 0:
            return self._model.forward(step, cache)[..., : self.vocabulary]
        told = step.tokens.masked_fill(step.tokens >= self._model.vocabulary, 0)
        logits = self._model.forward(replace(step, tokens=told, packed=None), cache)
        return F.pad(logits, (0, self._lacks), value=-torch.inf)
