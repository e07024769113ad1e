"""What the decoder asks of a source of drafts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol, runtime_checkable

from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..cache import KeyValueCache
from ..growth.captured import CapturedGrowth
from ..models.forward import LeftStates
from ..requests import Sequence


class Drafter(Protocol):
    """Proposes a draft tree behind every sequence of the batch."""

    @property
    def forwards(self) -> int:
        """Drafter forwards run so far."""

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Take a new sequence whose prompt is committed into a slot; not part of any round."""

    def move(self, source: int, target: int) -> None:
        """Let `target` become the slot of the sequence in `source`; one that was broken off is asked for again."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees drawn behind the committed text; row i is slot i."""


@runtime_checkable
class ReadsAlong(Protocol):
    """A drafter that can read a prompt piece by piece, before its sequence joins."""

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Let a slot hold all of these tokens, of which it holds the first `held`; what else it held is forgotten."""


@runtime_checkable
class CopiesPrefix(Protocol):
    """A drafter that can let one slot begin as another does."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Let a slot hold the first tokens of those that `source` holds, `most` of them at most, and nothing else.

        Returns how many these are. The slots may be one and the same; what `source` holds stays.
        """

    def swap_prefixes(self, one: int, other: int) -> None:
        """Let two slots in which nobody runs exchange what they hold; what is broken off leaves neither."""


@runtime_checkable
class Forgets(Protocol):
    """A drafter that can go back in the texts it has read."""

    def rewind(self, lengths: Many[int]) -> None:
        """Let slot i hold only the first lengths[i] tokens of those it has read: the rest is read again."""


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that also reads what the target keeps in its cache."""

    def attach(self, cache: KeyValueCache) -> None:
        """Take the target's cache; slot i is that of the drafter's slot i, and moves before it does."""


@runtime_checkable
class LeavesStates(Protocol):
    """A drafter that may have run the target's own first layers over what it drafted."""

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Return the states of a draft's nodes, with room for so many per sequence; None where no layer was run.

        The draft is the last one, of a policy that asks for them, behind the same texts. Nodes that no layer has read
        are read first.
        """


@runtime_checkable
class DraftsAhead(Protocol):
    """A drafter whose whole draft may be captured, and run behind a text that the host does not know yet."""

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return what captures whole drafts of a policy over the drafter's cache; None where they cannot be."""

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of every sequence that the next draft has to read first; at least one each."""

    def read_up(self, sequences: Many[Sequence]) -> None:
        """Read whatever of the sequences it has not, but the newest token of each, as prompts are read."""

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Take note of captured work of so many forwards that has read all of the sequences."""


def asked_of(drafter: Drafter, policy: TreePolicy) -> TreePolicy:
    """Return what a drafter is asked to draft in a round of a policy: the drafting alone unless it can leave states."""
    return policy if policy.kind == "resumed" and isinstance(drafter, LeavesStates) else drafting(policy)
