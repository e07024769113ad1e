"""A target's own first layers at work: they have read what was committed, so they draft on the target's cache."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from ...errors import ModelError
from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..cache import KeyValueCache
from ..layout import lay_out
from ..models.exit import ExitModel
from ..models.forward import ForwardInput, LeftStates
from ..requests import Sequence
from .model import ModelDrafter


class ExitDrafter(ModelDrafter):
    """Runs an exit over the first layers of the target's cache.

    A target's cache holds all tokens of a text but the newest. So a round reads that one token, whatever was committed
    since the last draft and whoever drafted it, and joining a batch costs nothing. Draft nodes are written behind the
    committed text, where the verification writes over them, or goes on from them: of a chain that is drafted for that
    the states behind the last layer are kept.

    Invariant: nothing in front of a sequence's newest token is written.
    """

    def __init__(self, model: ExitModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        """Stand ready for `slots` sequences of up to `capacity` tokens; `attach` comes before the first draft."""
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._exit, self._exit_layer, self._is_attached = model, model.exit_layer, False
        self._slots = slots
        self._states = torch.zeros(slots, 0, model.hidden, dtype=model.dtype, device=model.device)
        self._keeps, self._kept = False, 0  # whether states are being kept, and of how many nodes they are

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

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Do nothing: the target reads prompts."""

    def move(self, source: int, target: int) -> None:
        """Do nothing: the target's cache moves before its drafters do."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Return `most`: what the target holds is copied with its own keys."""
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
        """Return the trees the policy draws; of a ResumedPolicy the states of what is read are kept."""
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
        """Read the last token of every chain, and return the states of all nodes; behind them stands anything finite.

        Args:
            sequences: of the batch, which has committed nothing since.
            draft: the last one, of a ResumedPolicy.
            fed: tokens per sequence that the verification reads, padding included.

        Raises:
            ModelError: it is no such draft.
        """
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
        """Let states of so many tokens per sequence be kept; what is kept stays."""
        known = self._states.shape[1]
        if tokens > known:
            grown = self._states.new_zeros(self._slots, tokens, self._states.shape[2])
            grown[:, :known] = self._states
            self._states = grown
