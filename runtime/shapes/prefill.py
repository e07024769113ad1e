"""Prefills, as the decoder does them when a sequence joins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..layout import PREFILL_TOKENS, chain_sight, lay_out
from ..models.forward import CausalModel, ForwardInput
from .caches import ShapeCaches
from .room import Room


class PrefillShapes:
    """A model that reads `batch` prompts one after the other, each in pieces of at most `PREFILL_TOKENS`.

    All go through slot 0: the cost is the same, and one slot is enough to measure any batch.
    """

    role = "prefill"

    def __init__(self, model: CausalModel, *, identity: str, dtype: str, capacity: int) -> None:
        self.identity, self.dtype = identity, dtype
        self.regime, self.attention = model.regime, model.attention
        self._model = model
        self._caches = ShapeCaches(model, slots=1, capacity=capacity)
        self._room = Room(slots=1, capacity=capacity, longest_context=model.longest_context)

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that reads the next `tokens` tokens of `batch` prompts after a context, 0 for whole prompts.

        Raises:
            MeasurementError: the prompt does not fit into the cache or the model's positions.
            Exception: there is no memory for a cache of that size.
        """
        end = context_tokens + tokens
        self._room.require(batch=1, columns=end, place=end - 1)
        cache = self._caches.holding(1, end)
        starts = range(context_tokens, end, PREFILL_TOKENS)
        steps = [self._step(start, min(PREFILL_TOKENS, end - start)) for start in starts]

        def run() -> None:
            for _ in range(batch):
                for step in steps:
                    self._model.forward(step, cache)

        return run

    def _step(self, start: int, count: int) -> ForwardInput:
        return lay_out(
            np.random.default_rng(start).integers(0, self._model.vocabulary, (1, count)),
            np.arange(count),
            [start],
            chain_sight(count),
            take=np.array([count - 1]),
            dtype=self._model.dtype,
            device=self._model.device,
        )
