"""The caches that shapes are timed in."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ..cache import KeyValueCache
from ..faults import is_out_of_memory
from ..models.forward import CausalModel

STEP = 256  # tokens: shapes of nearly one size share a cache


class ShapeCaches:
    """Caches filled with noise: one for all shapes wherever there is memory for it.

    Where there is none, a shape takes the largest cache that prepared calls still hold, or a new one where it fits into
    none of them. So what is too large fails alone, and no call's cache changes while the call is kept.
    """

    def __init__(self, model: CausalModel, *, slots: int, capacity: int) -> None:
        """Allocate a cache for the largest batch and context to be timed, if it can be had."""
        self._model, self._capacity = model, capacity
        self._whole: KeyValueCache | None = None
        self._held: WeakKeyDictionary[KeyValueCache, int] = WeakKeyDictionary()  # the capacity that was asked for
        try:
            self._whole = self._new(slots, capacity)
        except Exception as error:
            if not is_out_of_memory(error):
                raise

    def holding(self, batch: int, columns: int) -> KeyValueCache:
        """Return a cache with room for a shape; whoever runs it holds the cache.

        Args:
            batch: sequences, no more than there were slots for.
            columns: cache positions per sequence, within the capacity.

        Raises:
            Exception: there is no memory for it.
        """
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
