"""The interface of an observer of rounds."""

from __future__ import annotations

from typing import Protocol

from .step_output import StepOutput


class RoundObserver(Protocol):
    """Gets every round right after it, in order; never raises because of a round's content."""

    def note(self, done: StepOutput, /) -> None:
        """Take a finished round."""
        ...
