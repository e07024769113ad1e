"""What the decoder asks of a source of drafts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

from ...planner.growth import DraftBatch
from ...planner.policy import TreePolicy
from ..requests import Sequence


class Drafter(Protocol):
    """Proposes a draft tree behind every sequence of the batch."""

    forwards: int  # drafter forwards run so far

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Take a new sequence whose prompt is committed into a slot; not part of any round."""

    def move(self, source: int, target: int) -> None:
        """Let `target` become the slot of the sequence in `source`."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees drawn behind the committed text; row i is slot i."""
