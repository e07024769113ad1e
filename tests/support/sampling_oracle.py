"""What transformers' own `generate` does to logits under sampling settings: the judge of ours."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from spectune.runtime.batch.sequence import Sampling


def own_fields(settings: Sampling) -> dict[str, Any]:
    """Return the settings by name."""
    return {name: getattr(settings, name) for name in Sampling.__slots__}


def processed_by_transformers(model: PreTrainedModel, settings: Sampling, ids: Tensor, logits: Tensor) -> Tensor:
    """Return scores (rows, vocabulary) of what follows texts (rows, tokens), in the order `generate` has."""
    is_sampled = settings.temperature > 0
    config = GenerationConfig(
        do_sample=is_sampled, **own_fields(settings) | {"temperature": settings.temperature or 1.0}
    )
    model_of_any_type: Any = model  # transformers types the self of its mixin as a protocol
    processors = model_of_any_type._get_logits_processor(config, input_ids_seq_length=ids.shape[1])
    scores: Tensor = processors(ids, logits.clone())
    return scores
