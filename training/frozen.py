"""The target of a training: frozen, in float32, and read as the runtime reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError
from ..runtime.models.anatomy import FAMILIES, text_part
from ..runtime.models.configuration import declared, longest_context_of
from ..runtime.models.loading import load_config, load_pretrained


def positions_of(target: Path) -> int:
    """Return how long a text of a target may grow, by its configuration alone.

    Raises:
        ModelError: it is of no family whose hidden states the runtime reads.
    """
    config = load_config(str(target)).get_text_config()
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"{target} is of type {config.model_type}, whose hidden states are not read; train on a target of one of "
            f"these types: {', '.join(FAMILIES)}"
        )
    return longest_context_of(config)


class FrozenTarget:
    """A transformers model of a family that the runtime reads, whose weights do not change.

    Attributes:
        model: all of it.
        config: of what reads and writes text in it.
        layers: of that.
        hidden: size of its hidden states.
    """

    def __init__(self, folder: Path, device: str) -> None:
        """Load it: 4 bytes a parameter, whatever the folder holds.

        Raises:
            ModelError: there is no such model.
            DeviceError: it cannot be moved to the device.
        """
        loaded: PreTrainedModel = load_pretrained(str(folder), dtype="float32", device=device)
        self.model = loaded.requires_grad_(False)
        part = text_part(loaded)
        self.config, self._base, self._head = part.config, part.base, part.head
        self.layers, self.hidden = int(self.config.num_hidden_layers), int(self.config.hidden_size)
        self._cap: float | None = declared(self.config, "final_logit_softcapping")

    def embedded(self, ids: Tensor) -> Tensor:
        """Return (any, hidden): what the layers read of tokens (any)."""
        found: Tensor = self._base.embed_tokens(ids)
        return found

    def states(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Return hidden states (batch, tokens, hidden), embedded and after every layer, the last final-normed."""
        found: tuple[Tensor, ...] = self._base(input_ids=ids, output_hidden_states=True).hidden_states
        return found

    def read(self, **given: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return hidden states (batch, tokens, hidden), all from before the final norm, and logits.

        transformers gives the last state behind that norm.

        Args:
            given: `input_ids` (batch, tokens), or `inputs_embeds` (batch, tokens, hidden).
        """
        last: list[Tensor] = []
        hook = self._base.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
        try:
            said = self.model(**given, output_hidden_states=True)
        finally:
            hook.remove()
        return [*said.hidden_states[:-1], last[0]], said.logits

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return hidden states (..., hidden) as the head reads them."""
        normed: Tensor = self._base.norm(hidden)
        return normed

    def said(self, normed: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of hidden states that went through the final norm, capped as the target's."""
        logits: Tensor = self._head(normed)
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def turns(self, like: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of places (batch, n), as the target's first layer turns."""
        rotary: Any = self._base.rotary_emb  # Any: transformers types no family's
        kinds = [self.config.layer_types[0]] if hasattr(rotary, "layer_types") else []
        cosine, sine = rotary(like, places, *kinds)
        return cosine, sine
