"""A clock whose calls take what it was told."""

from __future__ import annotations

from spectune.profiler.clock import Call, HostClock


class ScriptedClock(HostClock):
    """Runs calls, and says that they took so many milliseconds, one after the other."""

    def __init__(self, *took_ms: float) -> None:
        self._took_ms = iter(took_ms)

    def time_ms(self, call: Call) -> float:
        call()
        return next(self._took_ms)
