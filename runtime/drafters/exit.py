"""Drafts with a target's own first layers: they have read the committed text, so they use the target's cache."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from ...errors import ModelError
from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..cache import KeyValueCache
from ..models.exit import ExitModel
from ..models.forward import ForwardInput, LeftStates
from ..models.layout import lay_out
from ..requests import Sequence
from .model import ModelDrafter


class ExitDrafter(ModelDrafter):
    """Runs an exit over the first layers of the target's cache, to be attached before the first draft.

    That cache holds all tokens of a text but the newest, so a round reads one token, whichever drafter ran before, and
    joining a batch costs nothing. Draft nodes are written behind the committed text. The verification overwrites them;
    of chains drafted for a ResumedPolicy it continues from their states behind the last layer.

    Invariant: nothing in front of a sequence's newest token is written.
    """

    def __init__(self, model: ExitModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._exit, self._exit_layer, self._is_attached = model, model.exit_layer, False
        self._slots = slots
        self._states = torch.zeros(slots, 0, model.hidden, dtype=model.dtype, device=model.device)
        self._keeps, self._kept = False, 0  # whether states are being kept, and of how many nodes they are

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return a cache without slots: the target's takes its place."""
        return super().new_cache(0, capacity)

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache; ModelError if it is that of another kind of model."""
        if cache.layers <= self._exit_layer or cache.states.shape[3] != self._cache.states.shape[3]:
            raise ModelError(
                f"an exit after layer {self._exit_layer} drafts on its target's cache of more layers and "
                f"{self._cache.states.shape[3]} numbers a token, got one of {cache.layers} layers and "
                f"{cache.states.shape[3]}; decode with the target it was loaded beside"
            )
        self._cache, self._is_attached = cache.first(self._exit_layer), True

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Do nothing: the target reads prompts."""

    def move(self, source: int, target: int) -> None:
        """Do nothing: the target's cache has moved before."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Return `most`: the target's cache copies these keys."""
        return most

    def swap_prefixes(self, one: int, other: int) -> None:
        """Do nothing: the target's cache has done it."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return 1: the newest token is the only one that the target has not read."""
        return 1

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Feed the newest token of every sequence; return logits (batch, 1, vocabulary) behind it."""
        if not self._is_attached:
            raise ModelError("an exit drafts on its target's cache; let the decoder attach it, or call attach first")
        self.rewind([sequence.context for sequence in sequences])
        return super().catch_up(sequences)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the policy's trees; for a ResumedPolicy the states of fed tokens are stored for `left`."""
        self._keeps, self._kept = policy.kind == "resumed", 0
        if self._keeps:
            self._make_room(policy.max_verify_tokens)
        try:
            return super().draft(sequences, drafting(policy))
        finally:
            self._keeps = False

    def feed(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward; return its logits."""
        if not self._keeps:
            return super().feed(step)
        self.forwards += 1
        self._kept += 1
        return self._exit.forward_leaving(step, self._cache, self._states[: len(step.tokens), self._kept - 1])

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Read each chain's last token; return all nodes' states, finite behind them; ModelError for other drafts."""
        last = self._kept
        if last < 1 or (draft.sizes != last + 1).any():
            raise ModelError(
                f"states of {last} nodes were stored, and the draft has {draft.sizes.tolist()}; verify the chains that "
                "a ResumedPolicy has just drafted"
            )
        self._make_room(max(fed, last + 1))
        step = lay_out(
            draft.tokens[:, last : last + 1],
            np.zeros(1, dtype=np.int64),
            [sequence.context + last for sequence in sequences],
            np.ones((1, 1, 1), dtype=np.bool_),
            dtype=self._model.dtype,
            device=self._model.device,
            masks=self._masks,
        )
        self._exit.leave(step, self._cache, self._states[: len(sequences), last])
        return LeftStates(owner=self._exit.target, layers=self._exit_layer, states=self._states)

    def _make_room(self, tokens: int) -> None:
        known = self._states.shape[1]
        if tokens > known:
            grown = self._states.new_zeros(self._slots, tokens, self._states.shape[2])
            grown[:, :known] = self._states
            self._states = grown
