"""Forwards of any shape, run as the decoder runs them: what the profiler times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..errors import MeasurementError
from ..profiler.records.surface import Role
from .cache import KeyValueCache
from .layout import lay_out
from .models.forward import CausalModel, ForwardInput


class ForwardShapes:
    """One model in one role; all shapes share one cache filled with noise."""

    def __init__(self, model: CausalModel, *, identity: str, dtype: str, role: Role, slots: int, capacity: int) -> None:
        """Allocate a cache for the largest batch and context to be timed."""
        self.identity, self.dtype, self.role, self.regime = identity, dtype, role, model.regime
        self._model = model
        self._cache: KeyValueCache = model.new_cache(slots, capacity)
        self._cache.states.normal_()

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that runs one forward of the shape; the cache is left as it was.

        Raises:
            MeasurementError: the shape does not fit into the cache.
        """
        if batch > self._cache.slots or context_tokens + tokens > self._cache.capacity:
            raise MeasurementError(
                f"batch {batch} at context {context_tokens} with {tokens} tokens exceeds "
                f"{self._cache.slots} slots of {self._cache.capacity}; measure smaller shapes"
            )
        step = self._step(batch, context_tokens, tokens)

        def run() -> None:
            self._model.forward(step, self._cache)

        return run

    def wait(self) -> None:
        """Return when the device has finished what it was given."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def _step(self, batch: int, context_tokens: int, tokens: int) -> ForwardInput:
        rng = np.random.default_rng(0)
        return lay_out(
            rng.integers(0, self._model.vocabulary, (batch, tokens)),
            np.arange(tokens),
            [context_tokens] * batch,
            np.tri(tokens, dtype=np.bool_)[None],
            dtype=self._model.dtype,
            device=self._model.device,
        )
