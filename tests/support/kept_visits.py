"""A journal that remembers what a session timed, though the session ends."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.profiler.records.visit import Visit

from .memory_journal import MemoryJournal


class KeptVisits(MemoryJournal):
    """A journal that remembers every visit ever added."""

    def __init__(self, visits: Sequence[Visit] = ()) -> None:
        super().__init__(visits)
        self.kept: list[Visit] = list(visits)

    def add_visit(self, visit: Visit) -> None:
        super().add_visit(visit)
        self.kept.append(visit)
