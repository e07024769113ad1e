"""Verifications that continue from the states of the exit that drafted."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...profiler.records.role import RESUME
from ..models.exit import ExitModel
from ..models.forward import LeftStates
from .caches import ShapeCaches
from .forwards import ForwardShapes
from .piece import Piece, chain


class ResumedShapes(ForwardShapes):
    """A target that reads chains of which its exit has read all tokens but the last, as the decoder runs it.

    That token goes through the exit's layers, without a head; then all go through the other layers and the head.
    """

    def __init__(
        self,
        model: ExitModel,
        *,
        identity: str,
        dtype: str,
        slots: int,
        capacity: int,
        caches: ShapeCaches | None = None,
    ) -> None:
        super().__init__(
            model.target, identity=identity, dtype=dtype, role=RESUME, slots=slots, capacity=capacity, caches=caches
        )
        self._exit, self._target = model, model.target

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that verifies chains of so many tokens, roots included; all states but the last are noise.

        Raises:
            MeasurementError: the shape does not fit into the cache or the model's positions.
            Exception: there is no memory for a cache of that size.
        """
        last = context_tokens + tokens - 1
        self._room.require(batch=batch, columns=last + 1, place=context_tokens)
        cache = self.caches.holding(batch, last + 1)
        unread = self._step(batch, last, chain(1), cache)
        whole = self._step(batch, context_tokens, chain(tokens), cache)
        model, lower = self._target, cache.first(self._exit.exit_layer)
        states = torch.randn(batch, tokens, model.hidden).to(cache.states)
        left = LeftStates(owner=model, layers=self._exit.exit_layer, states=states)

        def run() -> None:
            self._exit.leave(unread, lower, states[:, -1])
            model.resume(whole, cache, left)

        return run

    def _piece(self, tokens: int) -> Piece:
        return chain(tokens)
