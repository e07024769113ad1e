"""The target of a training: frozen, in float32, and read as the runtime reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError
from ..runtime.models.anatomy import FAMILIES, text_part
from ..runtime.models.configuration import declared, longest_context_of
from ..runtime.models.loading import load_config, load_pretrained


def positions_of(target: Path) -> int:
    """Return the longest text of a target by its configuration; ModelError if its states cannot be read."""
    config = load_config(str(target)).get_text_config()
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"{target} is of type {config.model_type}, whose hidden states are not read; train on a target of one of "
            f"these types: {', '.join(FAMILIES)}"
        )
    return longest_context_of(config)


class FrozenTarget:
    """A frozen transformers model; `config`, `layers` and `hidden` are those of its part for text."""

    def __init__(self, folder: Path, device: str) -> None:
        """Load it: 4 bytes a parameter; ModelError without such a model, DeviceError if the device refuses it."""
        loaded: PreTrainedModel = load_pretrained(str(folder), dtype="float32", device=device)
        self.model = loaded.requires_grad_(False)
        part = text_part(loaded)
        self.config, self._base, self._head = part.config, part.base, part.head
        self.device = torch.device(device)
        self.layers, self.hidden = int(self.config.num_hidden_layers), int(self.config.hidden_size)
        self._cap: float | None = declared(self.config, "final_logit_softcapping")

    def embedded(self, ids: Tensor) -> Tensor:
        """Return embeddings (any, hidden) of tokens (any)."""
        found: Tensor = self._base.embed_tokens(ids)
        return found

    def states(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Return hidden states (batch, tokens, hidden), embedded and after every layer, the last final-normed."""
        found: tuple[Tensor, ...] = self._base(input_ids=ids, output_hidden_states=True).hidden_states
        return found

    def read(self, **given: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return hidden states (batch, tokens, hidden), even the last from before the final norm, and logits."""
        last: list[Tensor] = []
        hook = self._base.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
        try:
            said = self.model(**given, output_hidden_states=True)
        finally:
            hook.remove()
        return [*said.hidden_states[:-1], last[0]], said.logits

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return final-normed hidden states (..., hidden), as the head reads them."""
        normed: Tensor = self._base.norm(hidden)
        return normed

    def said(self, normed: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return logits (..., vocabulary or ids) of final-normed hidden states, capped as the target's."""
        logits: Tensor = self._head(normed) if ids is None else F.linear(normed, self._head.weight[ids])
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def turns(self, like: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of places (batch, n), as in the target's first layer."""
        rotary: Any = self._base.rotary_emb  # Any: transformers types no family's
        kinds = [self.config.layer_types[0]] if hasattr(rotary, "layer_types") else []
        cosine, sine = rotary(like, places, *kinds)
        return cosine, sine
