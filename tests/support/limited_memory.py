"""Memory that has no room for large caches."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import pytest

from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel


class Limit:
    """Refuses caches of more tokens than a limit, as torch does on a CPU.

    Attributes:
        refused: tokens of every cache that was.
        made: tokens of every other.
        alive: how many there were when each was asked for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tokens: float = math.inf) -> None:
        """Put it on every lean model."""
        self.refused: list[int] = []
        self.made: list[int] = []
        self.alive: list[int] = []
        caches: WeakSet[KeyValueCache] = WeakSet()
        new_cache = LeanModel.new_cache

        def within(model: LeanModel, slots: int, capacity: int) -> KeyValueCache:
            self.alive.append(len(caches))
            if slots * capacity > tokens:
                self.refused.append(slots * capacity)
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            self.made.append(slots * capacity)
            cache = new_cache(model, slots, capacity)
            caches.add(cache)
            return cache

        monkeypatch.setattr(LeanModel, "new_cache", within)


@contextmanager
def uncollected() -> Iterator[None]:
    """Let nothing collect cycles of references: what has ended has to let go of its memory by itself."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
