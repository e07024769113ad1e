"""What a cache should hold: transformers' own keys and values of a text that is read at once."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor
from transformers import PreTrainedModel


def fresh_states(model: PreTrainedModel, tokens: Many[int]) -> Tensor:
    """Return transformers' own keys and values of a text, (layers, tokens, width)."""
    with torch.no_grad():
        layers = model(torch.tensor([list(tokens)]), use_cache=True).past_key_values.layers
    both = [torch.cat((layer.keys, layer.values), dim=1)[0].transpose(0, 1).flatten(1) for layer in layers]
    return torch.stack(both)


def worst_difference(model: PreTrainedModel, texts: Many[Many[int]], seen: Many[tuple[int, Tensor]]) -> float:
    """Compare cached states (layers, tokens, width) of texts by index with a prefill of the finished texts.

    Attention is causal, so the first tokens' states do not depend on what follows.
    """
    fresh = [fresh_states(model, text) for text in texts]
    return max(float((states - fresh[index][:, : states.shape[1]]).abs().max()) for index, states in seen)
