"""The caches that shapes are timed in."""

from __future__ import annotations

from weakref import WeakKeyDictionary

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
