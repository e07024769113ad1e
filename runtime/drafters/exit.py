"""A target's own first layers at work: they have read what was committed, so they draft on the target's cache."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from ...errors import ModelError
from ..cache import KeyValueCache
from ..models.exit import ExitModel
from ..requests import Sequence
from .model import ModelDrafter


class ExitDrafter(ModelDrafter):
    """Runs an exit over the first layers of the target's cache.

    A target's cache holds all tokens of a text but the newest. So a round reads that one token, whatever was committed
    since the last draft and whoever drafted it, and joining a batch costs nothing. Draft nodes are written behind the
    committed text, where the verification writes over them.

    Invariant: nothing in front of a sequence's newest token is written.
    """

    def __init__(self, model: ExitModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        """Stand ready for `slots` sequences of up to `capacity` tokens; `attach` comes before the first draft."""
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._exit_layer, self._is_attached = model.exit_layer, False

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return a cache without slots: the target's takes its place."""
        return super().new_cache(0, capacity)

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache.

        Raises:
            ModelError: it is that of another kind of model.
        """
        if cache.layers <= self._exit_layer or cache.states.shape[3] != self._cache.states.shape[3]:
            raise ModelError(
                f"an exit after layer {self._exit_layer} drafts on its target's cache of more layers and "
                f"{self._cache.states.shape[3]} numbers a token, got one of {cache.layers} layers and "
                f"{cache.states.shape[3]}; decode with the target it was loaded beside"
            )
        self._cache, self._is_attached = cache.first(self._exit_layer), True

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Do nothing: the target has read the prompt."""

    def move(self, source: int, target: int) -> None:
        """Do nothing: the target's cache moves before its drafters do."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return 1: the newest token is the only one that the target has not read."""
        return 1

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Feed the newest token of every sequence; return logits (batch, 1, vocabulary) behind it."""
        if not self._is_attached:
            raise ModelError("an exit drafts on its target's cache; let the decoder attach it, or call attach first")
        self.rewind([sequence.context for sequence in sequences])
        return super().catch_up(sequences)
