"""The caches that shapes are timed in."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ...errors import MeasurementError
from ..cache import KeyValueCache
from ..faults import is_out_of_memory
from ..models.forward import CausalModel

STEP = 256  # tokens: shapes of nearly one size share a cache


class ShapeCaches:
    """Caches filled with noise: one for all shapes wherever there is memory for it.

    Without it, a shape takes the largest fitting cache of a held call, or a new one: what is too large fails alone.
    """

    def __init__(self, model: CausalModel, *, slots: int, capacity: int) -> None:
        """Try to allocate a cache for the largest batch and context to be timed."""
        self._model, self._capacity = model, capacity
        self._whole: KeyValueCache | None = None
        self._held: WeakKeyDictionary[KeyValueCache, int] = WeakKeyDictionary()  # the capacity that was asked for
        try:
            self._whole = self._new(slots, capacity)
        except Exception as error:
            if not is_out_of_memory(error):
                raise

    def holding(self, batch: int, columns: int) -> KeyValueCache:
        """Return a cache for `columns` positions of each sequence, which the caller must hold; fails without memory."""
        if self._whole is not None:
            return self._whole
        fitting = [cache for cache, room in self._held.items() if cache.slots >= batch and room >= columns]
        if fitting:
            return max(fitting, key=lambda cache: cache.slots * cache.capacity)
        capacity = min(-(-columns // STEP) * STEP, self._capacity)
        cache = self._new(batch, capacity)
        self._held[cache] = capacity
        return cache

    def _new(self, slots: int, capacity: int) -> KeyValueCache:
        cache = self._model.new_cache(slots, capacity)
        cache.states.normal_()
        return cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the cache and the positions of a model hold."""

    slots: int
    capacity: int  # tokens per slot
    longest_context: int  # places in a text

    def require(self, *, batch: int, columns: int, place: int) -> None:
        """Raise MeasurementError unless a shape of `columns` cache positions per sequence fits.

        `place` is the last one of the text itself. Drafts after it may reach beyond the model's positions, as a
        decoder's do at the end of a text: forwards take the last position for them.
        """
        if batch > self.slots or columns > self.capacity:
            raise MeasurementError(
                f"batch {batch} with {columns} tokens each exceeds {self.slots} slots of {self.capacity}; "
                "measure smaller shapes"
            )
        if place >= self.longest_context:
            raise MeasurementError(
                f"a token at place {place} lies behind the model's longest context of {self.longest_context}; "
                "measure shorter contexts"
            )

    def longest_before(self, columns: int) -> int:
        """Return the longest context before tokens that take so many cache positions per sequence."""
        return max(min(self.capacity - columns, self.longest_context - 1), 0)
