"""Finished parts of a job: made once, then found again by the run that goes on after a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..db.profiles import SURFACES
from ..profiler.protocols import MeasurementSink, Parts
from ..profiler.records.surface import LatencySurface
from ..profiler.records.visit import Visit
from ..profiler.records.wire import from_json, to_json

Made = TypeVar("Made")


class PartsUnder:
    """The parts of one step of a job, whose name is before theirs."""

    def __init__(self, parts: Parts, step: str) -> None:
        self._parts, self._step = parts, step

    def part(self, name: str) -> str | None:
        """Return the document stored under a name, None where there is none yet."""
        return self._parts.part(f"{self._step}/{name}")

    def add_part(self, name: str, document: str) -> None:
        """Keep a document under a new name; it outlives the process once this returns."""
        self._parts.add_part(f"{self._step}/{name}", document)


class FinishedWith:
    """A sink that stores its finished surfaces with others, all or none, so that no two profiles mix."""

    def __init__(self, sink: MeasurementSink, others: Sequence[LatencySurface]) -> None:
        self._sink, self._others = sink, others

    def visits(self) -> Sequence[Visit]:
        """Return what an earlier, killed run of the same session has timed, by ordinal."""
        return self._sink.visits()

    def add_visit(self, visit: Visit) -> None:
        """Keep one timed call; it outlives the process once this returns."""
        self._sink.add_visit(visit)

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        """Keep every cell of the surfaces and of the others, and drop the visits: all of it or nothing, once."""
        self._sink.finish_surfaces([*surfaces, *self._others])


def finished_surfaces(parts: Parts) -> tuple[LatencySurface, ...] | None:
    """Return the surfaces that an earlier run of a profile has finished, None where it has not."""
    document = parts.part(SURFACES)
    return None if document is None else from_json(tuple[LatencySurface, ...], document)


def kept_or_made(parts: Parts | None, name: str, kind: type[Made], make: Callable[[], Made]) -> Made:
    """Return the stored part of that name, bit for bit, or make and store it; StoreError where it is no such record."""
    document = None if parts is None else parts.part(name)
    if document is not None:
        found: Any = from_json(kind, document)  # Any: from_json's own word for what is not a class
        kept: Made = found
        return kept
    made = make()
    if parts is not None:
        parts.add_part(name, to_json(made, kind))
    return made
