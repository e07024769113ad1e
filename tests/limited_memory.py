"""Memory that has no room for large caches."""

from __future__ import annotations

import pytest

from spectune.runtime.cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel


class Limit:
    """Refuses caches of more tokens than a limit, as torch does on a CPU.

    Attributes:
        refused: tokens of every cache that was.
        made: tokens of every other.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tokens: int) -> None:
        """Put it on every lean model."""
        self.refused: list[int] = []
        self.made: list[int] = []
        new_cache = LeanModel.new_cache

        def within(model: LeanModel, slots: int, capacity: int) -> KeyValueCache:
            if slots * capacity > tokens:
                self.refused.append(slots * capacity)
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            self.made.append(slots * capacity)
            return new_cache(model, slots, capacity)

        monkeypatch.setattr(LeanModel, "new_cache", within)
