"""Whole drafting loops: the time of a drafter and its growth code for one tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...planner.strategies.base import made
from ..drafters.model import ModelDrafter
from ..faults import is_out_of_memory
from ..models.forward import CausalModel
from ..requests import Request, Sequence
from .room import Room


class LoopShapes:
    """A drafter that draws trees of `depth` layers: the root's forward, then depth - 1 forwards of one width.

    The tree is EAGLE-2's beam, cut to its candidates' best 1 + depth * width; a width of 1 is a chain. It grows where
    it does in every round: see `ModelDrafter`.
    """

    def __init__(self, model: CausalModel, *, identity: str, dtype: str, depth: int, slots: int, capacity: int) -> None:
        """Try to allocate the drafter's cache, and let it read a random text that fills it."""
        self.identity, self.dtype, self.role = identity, dtype, f"loop:{depth}"
        self.regime, self.attention = model.regime, model.attention
        self._model, self._depth = model, depth
        self._room = Room(slots=slots, capacity=capacity, longest_context=model.longest_context)
        longest = min(capacity, model.longest_context)
        self._text = tuple(np.random.default_rng(0).integers(0, model.vocabulary, longest).tolist())
        self._whole: ModelDrafter | None = None
        try:
            self._whole = self._reading(slots, capacity)
        except Exception as error:
            if not is_out_of_memory(error):
                raise

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that drafts one tree after a context and its newest token, which is not read yet.

        Raises:
            MeasurementError: the trees do not fit into the cache or the model's positions.
            Exception: there is no memory for a cache of that size.
        """
        columns = context_tokens + 1 + (self._depth - 1) * tokens
        self._room.require(batch=batch, columns=columns, place=context_tokens)
        policy = made("eagle2", verify_tokens=1 + self._depth * tokens, depth=self._depth - 1, top_k=tokens)
        request = Request(prompt=self._text[: context_tokens + 1], max_new_tokens=1)
        sequences = [Sequence(request, 0)] * batch  # drafting reads them only
        drafter = self._whole or self._reading(batch, columns)

        def run() -> None:
            drafter.rewind([context_tokens] * batch)
            drafter.draft(sequences, policy)

        return run

    def _reading(self, slots: int, capacity: int) -> ModelDrafter:
        """Return a drafter whose slots hold as much of the text as fits."""
        drafter = ModelDrafter(self._model, slots=slots, capacity=capacity)
        text = self._text[:capacity]
        drafter.read_prefixes(text, [len(text)] * slots)
        return drafter
