"""Finished parts of a job kept in memory; may be told to stop the job as a kill would."""

from __future__ import annotations


class StoppedError(Exception):
    """The job was killed here."""


class Shelf:
    """A dictionary of parts."""

    def __init__(self, documents: dict[str, str] | None = None, *, stop_after: int | None = None):
        """Start with what an earlier run kept; the job stops when it wants to keep more than `stop_after`."""
        self.documents = dict(documents or {})
        self.added: list[str] = []
        self._stop_after = stop_after

    def part(self, name: str) -> str | None:
        """Return what was kept under a name."""
        return self.documents.get(name)

    def add_part(self, name: str, document: str) -> None:
        """Keep a document, or stop before."""
        if len(self.added) == self._stop_after:
            raise StoppedError
        assert name not in self.documents
        self.documents[name] = document
        self.added.append(name)
