"""What the decoder asks of a source of drafts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol, runtime_checkable

from ...planner.growth import DraftBatch
from ...planner.policy import TreePolicy
from ..cache import KeyValueCache
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


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that also reads what the target keeps in its cache."""

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache; slot i is that of the drafter's slot i, and moves before it does."""
