"""A journal that is forgotten with the process: for measurements nobody wants to resume."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.errors import MeasurementError
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit


class MemoryJournal:
    """Keeps what a profile writes down in memory; implements `profiler.protocols.Journal`."""

    def __init__(self, visits: Sequence[Visit] = ()) -> None:
        """Begin empty, or with what an earlier run timed."""
        self._visits = {visit.ordinal: visit for visit in visits}
        self._parts: dict[str, str] = {}
        self.surfaces: tuple[LatencySurface, ...] = ()

    def visits(self) -> list[Visit]:
        """Return the timed calls so far, by ordinal."""
        return [self._visits[ordinal] for ordinal in sorted(self._visits)]

    def add_visit(self, visit: Visit) -> None:
        """Keep one timed call.

        Raises:
            MeasurementError: its ordinal is taken.
        """
        if visit.ordinal in self._visits:
            raise MeasurementError(f"visit {visit.ordinal} is there already; number visits from 0 without repeats")
        self._visits[visit.ordinal] = visit

    def part(self, name: str) -> str | None:
        """Return the document kept under a name, None where there is none yet."""
        return self._parts.get(name)

    def add_part(self, name: str, document: str) -> None:
        """Keep a document under a new name.

        Raises:
            MeasurementError: the name is taken.
        """
        if name in self._parts:
            raise MeasurementError(f"part {name!r} is there already; each is kept once")
        self._parts[name] = document

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        """Keep the surfaces and drop the visits they were made of."""
        self.surfaces = tuple(surfaces)
        self._visits.clear()
